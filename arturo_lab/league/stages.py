"""The stages: which runs each consists of, in the order in which they are trained.

| stage | runs | looks at |
|---|---|---|
| untouched | every optimizer at its own defaults, every seed | validation after every epoch, test once |
| trials | the same number of configurations for each, shortened | validation |
| tuned | the best trial of each at full length, every seed | validation after every epoch, test once |
| rates | AdamW over two decades of lr, at full length | validation |
| best-rate | AdamW at the best of these lr, every seed | validation after every epoch, test once |
| sweep | a few optimizers over three decades of lr | validation |
| ablation | AdaArturo with one part off, every seed | validation |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from arturo_lab.league.ablation import ABLATION_TASKS, entries
from arturo_lab.league.field import REFERENCE, TRIAL_SEED, League, shortened
from arturo_lab.league.rows import Rows, validation_value
from arturo_lab.league.valley import POINTS, REFERENCE_RATES, SWEEP, SWEPT, rates_around, swept_settings
from arturo_lab.optimizers.settings import Settings
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS

STAGES = ("untouched", "trials", "tuned", "rates", "best-rate", "sweep", "ablation")


@dataclass(frozen=True)
class Slot:
    """A place in a stage. ``config`` is None as long as the trials that decide it are not over."""

    stage: str
    task: str
    optimizer: str
    number: int  # of the seed, the trial or the lr
    epochs: int
    config: RunConfig | None


def untouched(league: League, rows: Rows) -> Iterator[Slot]:
    for seed in range(league.seeds):
        for task in league.tasks:
            for name in league.optimizers:
                config = at_defaults(league, task, name, seed)
                yield Slot("untouched", task, name, seed, config.epochs, config)


@cache
def at_defaults(league: League, task: str, optimizer: str, seed: int) -> RunConfig:
    return league.config(task, optimizer, seed, test=True)


def trials(league: League, rows: Rows) -> Iterator[Slot]:
    for task in league.tasks:
        epochs = league.trial_epochs(task)
        for number in range(league.trials):
            for name in league.optimizers:
                yield Slot("trials", task, name, number, epochs, trial(league, task, name, number))


@cache
def trial(league: League, task: str, optimizer: str, number: int) -> RunConfig:
    settings = league.trial_settings(optimizer)[number]
    return league.config(task, optimizer, TRIAL_SEED, settings, league.trial_epochs(task), test=False)


def tuned(league: League, rows: Rows) -> Iterator[Slot]:
    for seed in range(league.seeds):
        for task in league.tasks:
            for name in league.optimizers:
                best = winner(league, rows, task, name)
                config = None if best is None else league.config(task, name, seed, best[1], test=True)
                yield Slot("tuned", task, name, seed, TASKS[task].epochs, config)


def winner(league: League, rows: Rows, task: str, optimizer: str) -> tuple[int, Settings] | None:
    """The number and the settings of the best trial; None until all of them are over. Of equal ones the first."""
    number = best_of([trial(league, task, optimizer, number) for number in range(league.trials)], rows)
    return None if number is None else (number, league.trial_settings(optimizer)[number])


def best_of(configs: Sequence[RunConfig], rows: Rows) -> int | None:
    """Which of these runs of one task is best on validation data, the first of equals; None until all of them are over."""
    records = [record for config in configs if (record := rows.fresh(config)) is not None]
    if len(records) < len(configs):
        return None
    metric = TASKS[configs[0].task].metric
    values = [validation_value(record, metric.key) for record in records]
    scores = [metric.worst if value is None else metric.score(value) for value in values]
    return max(range(len(scores)), key=scores.__getitem__)


def at_rates(league: League, rows: Rows) -> Iterator[Slot]:
    for task in league.tasks if REFERENCE in league.optimizers else ():
        for number in range(len(REFERENCE_RATES)):
            yield Slot("rates", task, REFERENCE, number, TASKS[task].epochs, at_rate(league, task, number))


@cache
def at_rate(league: League, task: str, number: int) -> RunConfig:
    return league.config(task, REFERENCE, TRIAL_SEED, {"lr": REFERENCE_RATES[number]}, test=False)


def at_best_rate(league: League, rows: Rows) -> Iterator[Slot]:
    for seed in range(league.seeds):
        for task in league.tasks if REFERENCE in league.optimizers else ():
            best = best_of([at_rate(league, task, number) for number in range(len(REFERENCE_RATES))], rows)
            config = None if best is None else league.config(task, REFERENCE, seed, {"lr": REFERENCE_RATES[best]}, test=True)
            yield Slot("best-rate", task, REFERENCE, seed, TASKS[task].epochs, config)


@cache
def swept(league: League, task: str, name: str, number: int) -> RunConfig:
    settings = swept_settings(name, rates_around(name)[number])
    return league.config(task, name, 0, settings, shortened(task, SWEEP[task]), test=False)


def sweep(league: League, rows: Rows) -> Iterator[Slot]:
    for task in (task for task in SWEEP if task in league.tasks):
        epochs = shortened(task, SWEEP[task])
        for number in range(POINTS):
            for name in (name for name in SWEPT if name in league.optimizers):
                yield Slot("sweep", task, name, number, epochs, swept(league, task, name, number))


@cache
def ablated(league: League, task: str, name: str, seed: int) -> RunConfig:
    return league.config(task, name, seed, test=False)


def ablation(league: League, rows: Rows) -> Iterator[Slot]:
    for seed in range(league.seeds):
        for task in (task for task in ABLATION_TASKS if task in league.tasks):
            for name in entries():
                config = ablated(league, task, name, seed)
                yield Slot("ablation", task, name, seed, config.epochs, config)


SLOTS: dict[str, Callable[[League, Rows], Iterator[Slot]]] = {
    "untouched": untouched,
    "trials": trials,
    "tuned": tuned,
    "rates": at_rates,
    "best-rate": at_best_rate,
    "sweep": sweep,
    "ablation": ablation,
}
