"""Several optimizers on one task, on the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from arturo.lab.config import RunConfig
from arturo.lab.data import ImageData
from arturo.lab.epoch import EpochMetrics
from arturo.lab.errors import ConfigError
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.train import train


@dataclass(frozen=True)
class Run:
    """A finished training."""

    config: RunConfig
    epochs: tuple[EpochMetrics, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its doubled standard error, the paper's measure. A single seed has no spread: None.

    Example:
        >>> Estimate.of([1.0, 3.0])
        Estimate(mean=2.0, doubled_error=2.0)
    """

    mean: float
    doubled_error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        n = len(values)
        with np.errstate(invalid="ignore"):  # a run that diverged makes both NaN, which is the truth
            error = 2 * float(np.std(values, ddof=1)) / n**0.5 if n > 1 else None
            return cls(float(np.mean(values)), error)


@dataclass(frozen=True)
class Comparison:
    """All runs of one task: every optimizer on every seed."""

    task: str
    optimizers: tuple[str, ...]
    seeds: int
    epochs: int
    runs: tuple[Run, ...]

    def of(self, optimizer: str) -> list[Run]:
        """The runs of one optimizer, by seed."""
        return [run for run in self.runs if run.config.optimizer == optimizer]

    def curve(self, optimizer: str, metric: str) -> list[Estimate]:
        """One of the fields of :class:`EpochMetrics`, epoch by epoch, over the seeds."""
        values = [[getattr(metrics, metric) for metrics in run.epochs] for run in self.of(optimizer)]
        # A run that diverged ended early.
        return [Estimate.of([v[i] if i < len(v) else math.nan for v in values]) for i in range(self.epochs)]

    def final(self, optimizer: str, metric: str) -> Estimate:
        """The same after the last epoch: never the best epoch, which would peek at the test set."""
        return self.curve(optimizer, metric)[-1]

    def seconds_per_epoch(self, optimizer: str) -> float:
        """The median over all epochs and seeds: a busy machine slows some epochs, never speeds one up."""
        return statistics.median(metrics.seconds for run in self.of(optimizer) for metrics in run.epochs)

    @property
    def basis(self) -> str:
        """What a number in a table or a figure of this comparison is."""
        return "one seed" if self.seeds == 1 else f"mean ± doubled standard error, {self.seeds} paired seeds"

    @property
    def command(self) -> str:
        """What to type to get these numbers again."""
        names = " ".join(self.optimizers)
        return f"arturo compare {self.task} --optimizers {names} --seeds {self.seeds} --epochs {self.epochs}"


def plan(task: str, optimizers: Sequence[str], seeds: int, epochs: int | None = None) -> list[RunConfig]:
    """Every optimizer on the seeds 0, 1, ..., checked before the first one runs.

    The seeds are the outer loop, so that a machine that slows down or speeds up does so for every optimizer alike.
    """
    if seeds < 1:
        raise ConfigError(f"seeds: must be an integer >= 1, got {seeds}")
    if len(set(optimizers)) < len(optimizers):
        raise ConfigError(f"optimizers: named twice in {' '.join(optimizers)}")
    return [RunConfig.for_task(task, name, seed, epochs) for seed in range(seeds) for name in optimizers]


def compare(configs: Sequence[RunConfig], data: ImageData, progress: Progress, bar: TaskID) -> Comparison:
    """Run what :func:`plan` made, one after the other, advancing ``bar`` by every epoch."""
    runs = []
    for config in configs:
        label = f"{OPTIMIZERS[config.optimizer].label}, seed {config.seed}"
        progress.update(bar, running=label)

        def on_epoch(metrics: EpochMetrics, label: str = label) -> None:
            progress.update(bar, advance=1, running=f"{label}: {metrics.test_accuracy:.1%}")

        epochs = train(config, data, on_epoch)
        progress.update(bar, advance=config.epochs - len(epochs))  # those that a diverged run did not go through
        runs.append(Run(config, epochs))
    progress.update(bar, running="done")
    first = configs[0]
    optimizers = tuple(dict.fromkeys(config.optimizer for config in configs))
    return Comparison(first.task, optimizers, len(configs) // len(optimizers), first.epochs, tuple(runs))


def progress_bar() -> Progress:
    """Epochs done, time taken and time left, and the test accuracy of the run under way."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TextColumn("<"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[running]}"),
        speed_estimate_period=600,  # seconds of history: the optimizers differ in speed, so look back over several
    )
