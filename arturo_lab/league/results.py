"""What the rows come to: the sections of a stage, the targets of the times, who is ranked where."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from arturo_lab.league.field import DEVELOPED, OURS, REFERENCE, League
from arturo_lab.league.rows import Rows, busy, clocked, validation_value
from arturo_lab.league.stages import SLOTS, Slot
from arturo_lab.report.comparison import Difference, compare
from arturo_lab.report.evidence import median_arrival
from arturo_lab.report.ranking import Ranking, ranking
from arturo_lab.report.sections import Section, Variant, on_shared_seeds, sections
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record
from arturo_lab.tasks.catalog import TASKS

HEADLINE_STAGE = "untouched against best"  # of :func:`headline`


@dataclass(frozen=True)
class Outcome:
    """What runs of the league come to: those of a stage, "untouched" or "tuned", or those of :func:`headline`.

    Args:
        sections: a section for each task with a run, whose aim is AdamW's tuned result on validation data, if there is one.
        steps: of an epoch, by task.
        missing: how many runs are still to come.
        searching: tasks on which AdamW's best is not known yet, since one of its two searches is not over.
    """

    league: League
    stage: str
    sections: tuple[Section, ...]
    steps: dict[str, int]
    missing: int
    searching: frozenset[str] = frozenset()

    @cached_property
    def complete(self) -> list[Section]:
        """Tasks on which everybody has a run that is over."""
        return [s for s in self.sections if {v.optimizer for v in s.ranked} >= set(self.league.optimizers)]

    @cached_property
    def ranking(self) -> Ranking | None:
        """Over the complete tasks."""
        return ranking(self.complete)

    @property
    def aimed(self) -> bool:
        """Whether AdamW's tuned result is known on all ranked tasks: without it there is no time to it."""
        return self.ranking is not None and all(section.aim is not None for section in self.ranking.sections)

    @property
    def order(self) -> list[str]:
        """The optimizers, best mean rank first; those of the league as named as long as there is no ranking."""
        if self.ranking is None:
            return list(self.league.optimizers)
        return [standing.variants[0].optimizer for standing in self.ranking.standings]

    @property
    def present(self) -> list[str]:
        """Those of them that have a result."""
        there = {v.optimizer for section in self.sections for v in section.variants if v.over}
        return [name for name in self.order if name in there]

    @property
    def busy(self) -> bool:
        """Whether any run shared its machine with others."""
        return any(busy(run) for section in self.sections for run in section.runs)

    def section(self, task: str) -> Section | None:
        return next((section for section in self.sections if section.task == task), None)


def variant(section: Section | None, optimizer: str) -> Variant | None:
    """Of a section, if it has runs that are over."""
    return None if section is None else next((v for v in section.variants if v.optimizer == optimizer and v.over), None)


def outcome(league: League, rows: Rows, stage: str, aims: dict[str, float] | None = None) -> Outcome:
    """What a stage has come to so far."""
    aims = targets(league, rows) if aims is None else aims
    return collected(league, rows, stage, list(SLOTS[stage](league, rows)), aims)


def headline(league: League, rows: Rows) -> Outcome | None:
    """AdaArturo untouched and AdamW at its best, so far; None for a league without the two."""
    if not {OURS, REFERENCE} <= set(league.optimizers):
        return None
    ours = SLOTS["untouched"](dataclasses.replace(league, optimizers=(OURS,)), rows)
    of = collected(league, rows, HEADLINE_STAGE, [*ours, *at_its_best(league, rows)], targets(league, rows))
    both = [slot for way in ways(league, rows) for slot in way]
    open_tasks = {slot.task for slot in both if slot.config is None or rows.fresh(slot.config) is None}
    return dataclasses.replace(of, searching=frozenset(open_tasks))


def ways(league: League, rows: Rows) -> list[list[Slot]]:
    """The runs that count of AdamW's two searches."""
    alone = dataclasses.replace(league, optimizers=(REFERENCE,))
    return [list(SLOTS[stage](alone, rows)) for stage in ("tuned", "best-rate")]


def at_its_best(league: League, rows: Rows) -> list[Slot]:
    """AdamW with the best of its trials, or at the best of its lr: of each task what is better on validation data."""
    both, chosen = ways(league, rows), []
    for task in league.tasks:
        of_task = [[slot for slot in slots if slot.task == task] for slots in both]
        scores = [validation_score(task, slots, rows) for slots in of_task]
        chosen += of_task[scores.index(max(scores))]
    return chosen


def validation_score(task: str, slots: Sequence[Slot], rows: Rows) -> float:
    """The mean over the seeds, higher is better; minus infinity as long as a run is missing, or if one diverged."""
    values = [slot_value(slot, rows) for slot in slots]
    return statistics.fmean(-math.inf if value is None else TASKS[task].metric.score(value) for value in values)


def collected(league: League, rows: Rows, stage: str, slots: Sequence[Slot], aims: dict[str, float]) -> Outcome:
    """The outcome of the runs in these slots."""
    configs = [slot.config for slot in slots if slot.config is not None]
    records = [clocked(record) for config in configs if (record := rows.fresh(config)) is not None]
    of_tasks = {section.task: section for section in sections(records)}
    chosen = tuple(dataclasses.replace(of_tasks[task], aim=aims.get(task)) for task in league.tasks if task in of_tasks)
    steps = {config.task: config.steps_per_epoch for config in {config.task: config for config in configs}.values()}
    return Outcome(league, stage, chosen, steps, len(slots) - len(records))


def standings(section: Section) -> list[Variant]:
    """The variants with a result, best first, by the seeds that all of them have."""
    return sorted(on_shared_seeds(section.ranked), key=lambda variant: variant.standing)


def mean_ranks(of: Outcome, developed: bool) -> dict[str, float]:
    """By label, best first, over the ranked tasks on which AdaArturo's constants were chosen, or over the others."""
    if of.ranking is None:
        return {}
    places = [i for i, section in enumerate(of.ranking.sections) if (section.task in DEVELOPED) == developed]
    means = {s.label: statistics.fmean(s.ranks[i] for i in places) for s in of.ranking.standings if places}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def step_costs(folder: Path) -> dict[str, float]:
    """Of a training step with AdaArturo, in those with fused AdamW, by task, as benchmarks/training_step.py measured them."""
    file = folder / "training_step.json"
    networks = json.loads(file.read_text(encoding="utf-8"))["networks"] if file.exists() else {}
    return {task: row["contenders"]["ada-kronecker"]["ratio_of_means"] for task, row in networks.items()}


def versus(section: Section | None) -> Difference | None:
    """AdaArturo against AdamW with its warm-up; None unless both have a run that is over."""
    ours = variant(section, OURS)
    return None if section is None or ours is None else compare(section, REFERENCE).of(ours)


class Reached(NamedTuple):
    """When an optimizer first is as good as a section's aim, the median over its seeds; infinity unless more than half are."""

    epochs: float
    seconds: float
    seeds: int  # that are
    of: int


def reached(section: Section | None, optimizer: str) -> Reached | None:
    """None as long as it is unknown."""
    entry = variant(section, optimizer)
    if section is None or entry is None or section.aim is None:
        return None
    by_clock = {clock: entry.arrivals(section.aim, clock) for clock in ("epochs", "seconds")}
    epochs, seconds = (median_arrival(arrivals) for arrivals in by_clock.values())
    there = [arrival.reached for arrival in by_clock["epochs"]]
    return Reached(epochs or math.inf, seconds or math.inf, sum(there), len(there))


def ratios(section: Section) -> list[float]:
    """AdaArturo's loss, or its error where accuracy counts, in parts of AdamW's, seed by seed; empty for other metrics."""
    ours, theirs = (variant(section, name) for name in (OURS, REFERENCE))
    if ours is None or theirs is None or (section.metric.higher and section.metric.unit != "%"):
        return []
    pairs = [(ours.values[seed], theirs.values[seed]) for seed in sorted(ours.values.keys() & theirs.values.keys())]
    pairs = [(1 - one, 1 - other) for one, other in pairs] if section.metric.higher else pairs
    return [one / other for one, other in pairs] if all(value > 0 for pair in pairs for value in pair) else []


def targets(league: League, rows: Rows) -> dict[str, float]:
    """The result of AdamW at its best, on validation data after the last epoch, the mean over its seeds, by task."""
    return validation_means(at_its_best(league, rows), rows) if REFERENCE in league.optimizers else {}


def validation_means(slots: Sequence[Slot], rows: Rows) -> dict[str, float]:
    """By task, over the runs that are over."""
    result: dict[str, list[float]] = {}
    for slot in slots:
        value = slot_value(slot, rows)
        if value is not None:
            result.setdefault(slot.task, []).append(value)
    return {task: statistics.fmean(values) for task, values in result.items()}


def slot_value(slot: Slot, rows: Rows) -> float | None:
    """The result of its run on validation data after the last epoch."""
    record = None if slot.config is None else rows.fresh(slot.config)
    return None if record is None else validation_value(record, TASKS[slot.task].metric.key)


def on_validation(record: Record, loss: bool = False) -> Record:
    """The same run judged by its held-out part: the task's metric, or its loss, under the name ``validation_...``."""
    task = TASKS[record.config["task"]]
    key = "test_loss" if loss else task.metric.key
    described = {**task.metric.described(), "name": key.replace("test_", "validation_", 1)}
    if loss:
        described |= {"better": "lower", "unit": "nats" if task.metric.percent else task.metric.unit}
    value = validation_value(record, key)
    status = "diverged" if value is None else record.status
    config = {name: value for name, value in record.config.items() if name not in ("fold", "validation")}
    result = {**record.result, "status": status, "metric": {**described, "value": value}, described["name"]: value}
    return dataclasses.replace(record, config=config, result=result, status=status)


def judged_on_validation(configs: Sequence[RunConfig], rows: Rows, loss: bool = False) -> list[Section]:
    """Sections of the runs that have a row."""
    records = [record for config in configs if (record := rows.fresh(config)) is not None]
    return sections([on_validation(record, loss) for record in records])
