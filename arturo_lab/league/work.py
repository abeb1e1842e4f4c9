"""Train what is missing, wave after wave, and keep each run as a row the moment it is over."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.fetch import provide
from arturo_lab.commands.many import RunSet, check_provenance, train_many
from arturo_lab.commands.options import DataSource, PoolSize
from arturo_lab.commands.planning import Planning
from arturo_lab.errors import RunError
from arturo_lab.league.ablation import ABLATIONS
from arturo_lab.league.field import RELATIVE, SECONDS, League, label
from arturo_lab.league.rows import Rows, clocked, stale
from arturo_lab.league.stages import SLOTS, STAGES, Slot
from arturo_lab.pool.cost import Cost, Kind, kind_of
from arturo_lab.pool.status import OVER, RunStatus
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.lock import Locked, locked
from arturo_lab.runs.records import Record, read_run
from arturo_lab.tasks.catalog import TASKS

GUESS = 60.0  # seconds of a run of a task of which nothing is known


@dataclass
class Keeper:
    """Makes a row of every run that ends, and removes its folder."""

    rows: Rows
    out: Path
    jobs: int
    loads: dict[RunConfig, list[float]] = field(default_factory=dict)  # while they run

    def on_status(self, status: RunStatus) -> None:
        config = status.config
        if status.state == "training":
            self.loads.setdefault(config, []).append(load())
        if status.state in OVER:
            folder = self.out / config.folder
            seen = self.loads.pop(config, [])
            self.rows.add(read_run(folder), config, statistics.fmean(seen) if seen else load(), self.jobs)
            shutil.rmtree(folder)


def load() -> float:
    """How many processes wanted a core over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def waves(league: League, stages: Collection[str]) -> Iterator[tuple[str, int | None]]:
    """Stage by stage within a seed: an interrupted league has the same seeds of everything. None: whatever the number."""
    for seed in range(league.seeds):
        for stage in ("untouched", "trials", "tuned"):
            if stage in stages and (seed == 0 or stage != "trials"):
                yield stage, None if stage == "trials" else seed
    yield from ((stage, None) for stage in ("rates", "best-rate", "sweep", "ablation") if stage in stages)


def missing(league: League, rows: Rows, stage: str, number: int | None, only: Collection[str]) -> list[RunConfig]:
    """What can be trained now."""
    slots = (slot for slot in SLOTS[stage](league, rows) if number in (None, slot.number))
    configs = [slot.config for slot in slots if slot.config is not None and among(slot, only, league)]
    return list(dict.fromkeys(config for config in configs if rows.fresh(config) is None))


def among(slot: Slot, only: Collection[str], league: League) -> bool:
    """Whether a slot's task is among the tasks that are named, and its optimizer among the optimizers; no name means all."""
    tasks = [name for name in only if name in league.tasks]
    optimizers = [name for name in only if name not in league.tasks]
    return (not tasks or slot.task in tasks) and (not optimizers or slot.optimizer in optimizers)


def work(
    league: League,
    rows: Rows,
    out: Path,
    jobs: int,
    stages: Sequence[str],
    only: Collection[str],
    source: DataSource,
    argv: Sequence[str],
    console: Console,
) -> int:
    """All waves. Returns the command's exit code, as :func:`arturo_lab.commands.many.train_many` does."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with locked(out / ".lock"):
            return _work(league, rows, out, jobs, stages, only, source, argv, console)
    except Locked as error:
        raise RunError(f"{out}: {error} is training the league here; wait for it, or use another --work") from error


def _work(
    league: League,
    rows: Rows,
    out: Path,
    jobs: int,
    stages: Sequence[str],
    only: Collection[str],
    source: DataSource,
    argv: Sequence[str],
    console: Console,
) -> int:
    code = 0
    for stage, number in waves(league, stages):
        configs = missing(league, rows, stage, number, only)
        if not configs:
            continue
        for name in dict.fromkeys(TASKS[config.task].data for config in configs):
            provide(name, source, console)  # a problem with the data is reported before the wave
        console.rule(f"{stage}{'' if number is None else f', seed {number}'}: {len(configs)} runs")
        runs = RunSet(configs, out, PoolSize(jobs))
        check_provenance(runs, Planning(), source, {}, console)
        costs: dict[Kind, Cost] = {kind_of(c): Cost(seconds(c, rows) / c.epochs, 0.0, 0.0, 0.0) for c in configs}
        keeper = Keeper(rows, out, jobs)
        code = max(code, train_many(runs, costs, source, argv, console, on_status=keeper.on_status))
        if code > 1:
            break
    return code


def seconds(config: RunConfig, rows: Rows) -> float:
    """What a run will take: from rows of the same task and optimizer, else of the same task, else a rough guess."""
    return config.epochs * epoch_seconds(config.task, config.optimizer, rows)


def epoch_seconds(task: str, optimizer: str, rows: Rows) -> float:
    of_task = [record for record in rows.records.values() if record.config["task"] == task and record.rows]
    same = [record for record in of_task if record.config["optimizer"] == optimizer]
    if same:
        return statistics.fmean(map(taken, same))
    adamw = [taken(record) / relative(record.config["optimizer"]) for record in of_task]
    return relative(optimizer) * (statistics.fmean(adamw) if adamw else SECONDS.get(task, GUESS) / TASKS[task].epochs)


def relative(optimizer: str) -> float:
    """How long an optimizer takes, as a guess, in units of AdamW's time."""
    return RELATIVE.get("adaarturo" if optimizer in ABLATIONS else optimizer, 1.0)


def taken(record: Record) -> float:
    """Seconds of an epoch on a core that nobody shares, its test included."""
    return float(clocked(record).rows[-1]["wall_seconds"] + record.result["seconds_test"]) / len(record.rows)


@dataclass(frozen=True)
class Progress:
    """How far a stage is."""

    stage: str
    done: int
    stale: int  # of the missing ones: a row is there, and does not count any more
    missing: int
    waiting: int  # of the missing ones, for trials
    seconds: float  # of one core, for the missing ones

    @property
    def runs(self) -> int:
        return self.done + self.missing


def progress(league: League, rows: Rows, stages: Sequence[str] = STAGES, only: Collection[str] = ()) -> list[Progress]:
    """Of each stage."""
    cached: dict[tuple[str, str], float] = {}

    def cost(slot: Slot) -> float:
        key = slot.task, slot.optimizer
        if key not in cached:
            cached[key] = epoch_seconds(*key, rows)
        return slot.epochs * cached[key]

    result = []
    for stage in stages:
        slots = [slot for slot in SLOTS[stage](league, rows) if among(slot, only, league)]
        left = [slot for slot in slots if slot.config is None or rows.fresh(slot.config) is None]
        old = sum(slot.config is not None and rows.is_stale(slot.config) for slot in left)
        waiting = sum(slot.config is None for slot in left)
        result.append(Progress(stage, len(slots) - len(left), old, len(left), waiting, sum(map(cost, left))))
    return result


def why_stale(league: League, rows: Rows, stages: Sequence[str] = STAGES) -> dict[str, int]:
    """How many rows do not count any more, by optimizer and reason."""
    configs = (slot.config for stage in stages for slot in SLOTS[stage](league, rows))
    reasons: dict[str, int] = {}
    for config in dict.fromkeys(config for config in configs if config is not None):
        record = rows.records.get((config.task, config.name))
        if record is not None and (changed := stale(record, config)):
            words = f"{label(config.optimizer)}: {'; '.join(changed)}"
            reasons[words] = reasons.get(words, 0) + 1
    return reasons


def unused(league: League, rows: Rows) -> int:
    """Rows that belong to no stage: of other rules, settings or trials."""
    configs = (slot.config for stage in STAGES for slot in SLOTS[stage](league, rows))
    wanted = {(config.task, config.name) for config in configs if config is not None}
    return sum(key not in wanted for key in rows.records)
