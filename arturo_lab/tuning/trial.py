"""One trial: a configuration judged fold by fold. The runs are run folders, gone when the trial is over."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from arturo_lab.errors import RunError
from arturo_lab.optimizers.settings import Settings
from arturo_lab.pool.status import OVER, RunStatus
from arturo_lab.pool.workers import CHECKPOINT_SECONDS, load, silence_advice, train_one
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.loggers import Logging
from arturo_lab.tuning.protocols import Search


@dataclass(frozen=True)
class Judged:
    """A run that is over."""

    score: float  # the task's metric, such that more is better
    diverged: bool


Trainer = Callable[[Sequence[RunConfig], Path], list[Judged]]  # trains configs in run folders under a path


def training(
    train: Callable[..., list[RunStatus]] | None,
    jobs: int,
    data_dir: Path | None,
    stop: Callable[[], bool],
    log: Logging | None = None,
) -> Trainer:
    """``jobs`` at a time through ``train``, which is called like :func:`arturo_lab.pool.workers.train_all`. One that is over is
    left alone. None: one after the other in this process, which spares a run of seconds the start of another.
    """

    if train is None:
        silence_advice()

    def here(config: RunConfig, out: Path) -> RunStatus:
        loaded = load(TASKS[config.task].data, data_dir)
        return train_one(config, loaded, out, CHECKPOINT_SECONDS, lambda status: None, stop, log)

    def trained(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
        if train is None:
            last = [here(config, out) for config in configs]
        else:
            last = train(configs, out, jobs, data_dir=data_dir, stop=stop, log=log)
        for status in last:
            if status.state == "failed":
                raise RunError(f"{status.config.name}: {status.message}")
            if status.state not in OVER:
                raise KeyboardInterrupt
        return [judged(status) for status in last]

    return trained


def judged(status: RunStatus) -> Judged:
    metric = TASKS[status.config.task].metric
    diverged = status.state == "diverged" or status.value is None
    return Judged(metric.worst if diverged or status.value is None else metric.score(status.value), diverged)


def judge(
    trial: Trial,
    search: Search,
    trainer: Trainer,
    scratch: Path,
    prune: bool,
    at_once: int = 1,
    on_fold: Callable[[int, list[float]], None] = lambda fold, scores: None,
) -> bool:
    """Train and report. False: another worker has the trial now, and what this one measured does not count.

    The score is the mean of the task's metric on held-out examples after the last epoch, over folds and seeds. A
    configuration that diverges once has the metric's worst score at once. ``at_once`` folds go to the trainer together, and
    are judged one after the other: what comes out does not depend on it.
    """
    point = {d.name: trial.suggest_float(d.name, d.low, d.high, log=d.log) for d in search.space.dimensions}
    settings = search.space.settings(point)
    folder = scratch / f"study{search.study}-slot{trial.user_attrs['slot']}"
    scores: list[float] = []
    state, value = TrialState.COMPLETE, None
    try:
        for fold, runs in in_order(search, settings, trainer, folder, at_once):
            if any(run.diverged for run in runs):
                trial.set_user_attr("diverged", True)
                value = TASKS[search.task].metric.worst
                break
            for run in runs:
                trial.report(run.score, step=len(scores))
                scores.append(run.score)
            on_fold(fold, scores)
            if prune and fold < search.folds and trial.should_prune():
                state = TrialState.PRUNED
                break
        else:
            value = statistics.fmean(scores)
        frozen = trial.study.tell(trial, value, state, skip_if_finished=True)
    except UpdateFinishedTrialError:
        return False
    if frozen.state == TrialState.FAIL:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def in_order(
    search: Search, settings: Settings, trainer: Trainer, folder: Path, at_once: int
) -> Iterator[tuple[int, list[Judged]]]:
    """Every fold's number and runs, ``at_once`` folds trained ahead of being asked for."""
    for first in range(1, search.folds + 1, at_once):
        folds = range(first, min(first + at_once, search.folds + 1))
        runs = trainer([config for fold in folds for config in search.configs(settings, fold)], folder)
        for i, fold in enumerate(folds):
            yield fold, runs[i * search.seeds : (i + 1) * search.seeds]
