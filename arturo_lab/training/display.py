"""A training as it is seen in a terminal: a line per epoch, and below them a bar that moves. Elsewhere the lines alone."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.epoch import EpochMetrics, StepMetrics

HEADING = " epoch  train loss  {data} loss  {metric:>8}  {unit:>8}      left"
AGES = 1e9  # seconds; nobody waits longer, and timedelta has an end
TRUST_REGION = "  KL/bound       eta"


class TrainingDisplay:
    """Shows ``on_epoch`` and ``on_step`` of a training. A context manager: the bar lives inside.

    Args:
        config: the training.
        console: where to.
        done: epochs of an earlier process.
    """

    def __init__(self, config: RunConfig, console: Console, done: int = 0) -> None:
        self.config = config
        self.steps = steps = config.steps_per_epoch
        self.console = console
        self.images_per_second = 0.0
        self.task = TASKS[config.task]
        self.shown = next((metric for metric in self.task.metrics if metric.name != "loss"), None)  # the loss has its column
        self.measured = ""
        self.data = "val." if config.share.fold or config.share.validation else "test"  # what epochs are measured on
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=300,  # seconds of history: tests and checkpoints come in between
            transient=True,
        )
        self.bar = self.progress.add_task(
            "", total=steps * config.epochs, completed=steps * done, epoch=f"{done + 1}/{config.epochs}", numbers=""
        )

    def __enter__(self) -> TrainingDisplay:
        config = self.config
        self.console.print(
            f"{config.task}, {OPTIMIZERS[config.optimizer].label}, seed {config.seed}, {count(config.epochs, 'epoch')}"
            f" of {count(self.steps, 'step')}",
            highlight=False,
            markup=False,
        )
        unit = "images/s" if self.task.classifies else "per s"
        heading = HEADING.format(data=self.data, metric=self.shown.name if self.shown else "", unit=unit)
        self.console.print(heading + (TRUST_REGION if "kl_bound" in config.settings else ""), style="bold", highlight=False)
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def on_step(self, metrics: StepMetrics) -> None:
        if self.progress.disable:
            return
        numbers = f"loss {metrics.loss:.4f}{self.measured}"
        if metrics.bound:
            numbers += f"  KL/bound {(metrics.kl or 0) / metrics.bound:.4f}  eta {metrics.eta:.3g}"
        if self.images_per_second:
            numbers += f"  {self.images_per_second:,.0f} images/s"
        epoch = f"{metrics.epoch}/{self.config.epochs}"
        self.progress.update(self.bar, completed=metrics.step, numbers=numbers, epoch=epoch)

    def on_epoch(self, metrics: EpochMetrics) -> None:
        self.images_per_second = metrics.images_per_second
        value = "" if self.shown is None else self.shown.text(metrics.value(self.shown.name))
        self.measured = f"  {self.shown.name} {value}" if self.shown else f"  {self.data} loss {metrics.test_loss:.4f}"
        left = (self.config.epochs - metrics.epoch) * (metrics.seconds + metrics.seconds_test)
        row = (
            f"{metrics.epoch:6d}  {metrics.train_loss:10.4f}  {metrics.test_loss:9.4f}  {value:>8}"
            f"  {metrics.images_per_second:8,.0f}  {timedelta(seconds=round(min(left, AGES)))!s:>8}"
        )
        if metrics.kl_over_bound is not None:
            row += f"  {metrics.kl_over_bound:8.4f}  {metrics.eta:8.3g}"
        self.console.print(row, highlight=False, soft_wrap=True)
