"""The progress of many runs: which wait and which are tried again, in local processes and on a cluster alike."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arturo_lab.errors import LabError
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import RecordError, read_run
from arturo_lab.tasks.catalog import TASKS

OVER = ("finished", "diverged")


@dataclass(frozen=True)
class RunStatus:
    """The progress of a run."""

    config: RunConfig
    state: str  # waiting, training, finished, diverged, stopped (can be resumed), failed
    epochs: float = 0.0  # done, including the fraction of the current one
    value: float | None = None  # of the task's metric after the last whole epoch
    seconds: float | None = None  # that an epoch takes, its test included
    reused: bool = False  # it was over before
    message: str = ""  # why it failed, or starts again
    details: str = ""  # the traceback of an error that is a defect of ours


class RunQueue:
    """The status of every run, and the runs that wait.

    Args:
        configs: the runs.
        out: where their folders are.
        most: attempts at a run whose worker dies.
        on_status: called with every change.
    """

    def __init__(self, configs: Sequence[RunConfig], out: Path, most: int, on_status: Callable[[RunStatus], None]) -> None:
        self.latest: dict[RunConfig, RunStatus] = {}
        self.out = out
        self.most = most
        self.on_status = on_status
        for config in configs:
            self.update(status_of(config, out))
        self.waiting = deque(config for config in configs if self.latest[config].state == "waiting")
        self.attempts = dict.fromkeys(configs, 0)

    def update(self, status: RunStatus) -> None:
        self.latest[status.config] = status
        self.on_status(status)

    def take(self) -> RunConfig:
        """The next one, for one more attempt."""
        config = self.waiting.popleft()
        self.attempts[config] += 1
        return config

    def lose(self, config: RunConfig, how: str, stopping: bool) -> None:
        """Its worker is gone: it waits again, unless we are stopping or it has used up its attempts."""
        before, attempts = self.latest[config], self.attempts[config]
        saved = (self.out / config.folder / "checkpoint.pt").exists()
        where = "from its last checkpoint" if saved else "from the beginning"
        if stopping:
            state, what = "stopped", f"run the same command again to resume {where}"
        elif attempts < self.most:
            state, what = "waiting", f"another worker resumes it {where}"
            self.waiting.appendleft(config)
        else:
            state, what = "failed", f"{attempts} times; run the same command again to resume {where}"
        self.update(RunStatus(config, state, math.floor(before.epochs), before.value, message=f"{how}; {what}"))

    def last(self) -> list[RunStatus]:
        return list(self.latest.values())


def status_of(config: RunConfig, out: Path) -> RunStatus:
    """What the folder of a run says before anything is done."""
    folder = out / config.folder
    if not (folder / "config.json").exists():
        return RunStatus(config, "waiting")
    try:
        record = read_run(folder)
    except RecordError as error:
        return RunStatus(config, "failed", message=f"{folder}/{error}; remove the folder to train it again")
    taken = [(row.get("seconds") or 0.0) + (row.get("seconds_test") or 0.0) for row in record.rows]
    state = record.status if record.status in OVER else "waiting"
    return RunStatus(
        config,
        state,
        float(len(record.rows)),
        record.rows[-1].get(TASKS[config.task].metric.key) if record.rows else None,
        sum(taken) / len(taken) if taken else None,
        reused=state in OVER,
    )


def failed(config: RunConfig, error: Exception) -> RunStatus:
    """An error as a status: one of ours in a line, any other with its traceback."""
    if isinstance(error, LabError):
        return RunStatus(config, "failed", message=str(error))
    details = "".join(traceback.format_exception(error))
    return RunStatus(config, "failed", message=f"{type(error).__name__}: {error}", details=details)
