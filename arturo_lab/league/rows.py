"""The rows of the league, ``runs.jsonl``: every run that is over, so that no run folder is needed to go on.

A row is a run as :mod:`arturo_lab.runs.compact` keeps it: its config without what is off, of its epochs the curves, and in its
``result`` also

    made_with   rules (of the league), method (of our own optimizers), and the digests of arturo_lab.runs.provenance
    load        of the machine while it ran: the mean of the 1-minute average
    jobs        of the league, at the same time
    seconds_optimizer, seconds_test   sums over the epochs
    looks       how often the test set was looked at with this config: 1, and 1 more whenever it was trained again

A row is stale, and its run is made again, when the rules, the method or the package of the optimizer, or the task have changed.
Another version of our kernels, or of the code around the training loop, does not make it stale: it is counted and told.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from arturo_lab.errors import ConfigError
from arturo_lab.league.field import RULES
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.runs.compact import identity, read_compact, write_compact
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.lock import Locked, locked
from arturo_lab.runs.provenance import laboratory, optimizer_source, task_source
from arturo_lab.runs.records import Record, RecordError

KEPT = ("train_loss", "wall_seconds", "seconds_cpu")  # of an epoch, beside test_...
SUMMED = ("seconds_optimizer", "seconds_test")  # over the epochs
BUSY = 0.5  # processes beyond our own from which a machine counts as busy
PATIENCE = 60.0  # seconds to wait for another process that writes


@dataclass
class Rows:
    """The rows in a file; what others have added to it since is merged when one is added."""

    path: Path
    records: dict[tuple[str, str], Record] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Rows:
        try:
            return cls(path, {identity(record): record for record in (read_compact(path) if path.exists() else [])})
        except RecordError as error:
            raise ConfigError(f"out: {path.parent}/{error}; restore it from the repository, or choose another --out") from error

    def fresh(self, config: RunConfig) -> Record | None:
        """The run of this config, if it is over and still counts."""
        record = self.records.get((config.task, config.name))
        return None if record is None or stale(record, config) else record

    def is_stale(self, config: RunConfig) -> bool:
        record = self.records.get((config.task, config.name))
        return record is not None and bool(stale(record, config))

    def add(self, record: Record, config: RunConfig, load: float, jobs: int) -> None:
        """Keep a run that is over, on the disk before this returns."""
        environment = {key: value for key, value in record.environment.items() if key != "made_with"}
        made_with = {**record.environment.get("made_with", {}), **current(config)}
        sums = {key: round(sum(row.get(key) or 0.0 for row in record.rows), 4) for key in SUMMED}
        result = {**record.result, **sums, "made_with": made_with, "load": round(load, 2), "jobs": jobs}
        rows = tuple({key: row[key] for key in row if key in KEPT or key.startswith("test_")} for row in record.rows)
        kept = replace(record, config=config.identity(), environment=environment, result=result, rows=rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with waiting_for(self.path.with_name(".lock")):
            if config.share.validation is not None:
                before = Rows.read(self.path).records.get(identity(kept))
                result["looks"] = 1 if before is None else looks(before) + 1
            write_compact(self.path, [kept])
            self.records = {identity(each): each for each in read_compact(self.path)}


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold a lock, after whoever has it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with locked(path):
                yield
            return
        except Locked:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def current(config: RunConfig) -> dict[str, Any]:
    """What a run of this config would be made with now."""
    method = OPTIMIZERS[config.optimizer].method
    own = {"optimizer": source(config)} if method is None else {"method": method}
    return {"rules": RULES, **own, "task": task_digest(config.task)}


_sources: dict[str, str] = {}  # by optimizer: looked up once


def source(config: RunConfig) -> str:
    if config.optimizer not in _sources:
        _sources[config.optimizer] = optimizer_source(config)
    return _sources[config.optimizer]


task_digest = cache(task_source)


def stale(record: Record, config: RunConfig) -> list[str]:
    """What has changed since, in words; empty for a row that counts."""
    recorded: Mapping[str, Any] = record.result.get("made_with", {})
    now = current(config)
    return [f"{key} was {recorded.get(key)} and is {now[key]}" for key in now if recorded.get(key) != now[key]]


def other_laboratory(record: Record) -> bool:
    """Whether the code around the training loop was another one."""
    return bool(record.result.get("made_with", {}).get("laboratory") != laboratory())


def looks(record: Record) -> int:
    """How often the test set was looked at for this run, and those that it replaced."""
    return int(record.result.get("looks", 1))


def busy(record: Record) -> bool:
    """Whether other processes competed for the machine, so that its seconds say little."""
    return bool(record.result.get("load", 0.0) > record.result.get("jobs", 1) + BUSY)


def clocked(record: Record) -> Record:
    """The same with the seconds that the process had a core in place of those that went by, for a run on one thread.

    On an idle machine the two are the same. They differ where others competed for the cores, and where the process was paused,
    which no load average tells: a run of one minute once took twenty.
    """
    worked = [row.get("seconds_cpu") for row in record.rows]
    if record.config.get("threads") != 1 or any(not seconds for seconds in worked):
        return record
    totals = itertools.accumulate(seconds for seconds in worked if seconds)
    return replace(record, rows=tuple({**row, "wall_seconds": s} for row, s in zip(record.rows, totals, strict=True)))


def validation_value(record: Record, key: str) -> float | None:
    """The task's metric on the held-out part after the last epoch; None of a run that diverged."""
    return record.rows[-1].get(key) if record.status == "finished" and record.rows else None
