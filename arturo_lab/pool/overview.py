"""All runs of a comparison at a glance, while they run. Without a terminal: a line for each that ends, and one a minute."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arturo_lab.errors import ConfigError
from arturo_lab.fields import flat
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import Settings, resolve
from arturo_lab.pool.cost import Kind, kind_of
from arturo_lab.pool.status import OVER, RunStatus
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS

LOG_SECONDS = 60.0  # between two lines about all runs, where there is no terminal


class Overview:
    """Shows the progress of :func:`arturo_lab.pool.workers.train_all`. A context manager: the picture lives inside.

    Args:
        configs: all runs.
        jobs: how many run at once.
        console: where to.
        expected: seconds that an epoch of a task and optimizer is expected to take, until one has been seen.
        now: a clock.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        jobs: int,
        console: Console,
        expected: Mapping[Kind, float] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.expected = expected or {}
        self.now = now
        self.logged = -math.inf  # when the last line about all runs was written
        self.status = {config: RunStatus(config, "waiting") for config in configs}
        self.labels = labels(configs)
        self.jobs = jobs
        self.console = console
        self.began = now()
        self.live = Live(get_renderable=self.picture, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Overview:
        self.began = self.now()
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.live.stop()

    def on_status(self, status: RunStatus) -> None:
        self.status[status.config] = status
        log = not self.console.is_terminal
        if not status.reused and (status.message or (status.state in OVER and log)):
            self.console.print(
                line(status, self.labels[status.config]) + (f" ({self.progress()})" if log else ""),
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        elif log and status.state == "training" and status.epochs >= 1 and self.now() - self.logged >= LOG_SECONDS:
            self.logged = self.now()
            self.console.print(self.progress(), highlight=False, soft_wrap=True)

    def progress(self) -> str:
        """How many runs are over, and how long the others will take."""
        runs = list(self.status.values())
        left = seconds_left(runs, self.jobs, self.expected)
        over = sum(status.state in OVER for status in runs)
        gone = clock(self.now() - self.began)
        return f"{over} of {count(len(runs), 'run')}, {gone} elapsed, {'unknown time' if left is None else clock(left)} left"

    def picture(self) -> RenderableType:
        """How far all of it is, and below a table for each task; only those under way if there is no room for all."""
        runs = list(self.status.values())
        tasks: dict[str, list[RunStatus]] = {}
        for status in runs:
            tasks.setdefault(status.config.task, []).append(status)
        tables = {task: table(task, rows, self.labels) for task, rows in tasks.items()}
        if sum(each.row_count + 4 for each in tables.values()) + 2 > self.console.height:
            tables = {task: tables[task] for task, rows in tasks.items() if any(status.state == "training" for status in rows)}
        return Group(self.bar(runs), *tables.values())

    def bar(self, runs: Sequence[RunStatus]) -> RenderableType:
        total = sum(status.config.epochs for status in runs)
        done = sum(status.config.epochs if status.state in OVER else status.epochs for status in runs)
        result = Table.grid(padding=(0, 1))
        over, times = self.progress().split(", ", 1)
        result.add_row(over, ProgressBar(total=total, completed=done, width=30), times)
        return result


def labels(configs: Sequence[RunConfig]) -> dict[RunConfig, str]:
    """What each run's optimizer is called, with the values that tell it from the others on its task and from its own defaults.

    Example:
        >>> rates = [RunConfig.for_task("digits-mlp", "sgd", overrides={"lr": lr}) for lr in (0.1, 0.0316)]
        >>> list(labels([*rates, RunConfig.for_task("digits-mlp", "adam")]).values())
        ['SGD (lr 0.1)', 'SGD (lr 0.0316)', 'Adam']
    """
    groups: dict[tuple[str, str], list[RunConfig]] = {}
    for config in configs:
        groups.setdefault((config.task, config.optimizer), []).append(config)
    result = {}
    for (_, optimizer), group in groups.items():
        values = [{**flat(config.share), **config.settings} for config in group]
        known = [*values, {**values[0], **defaults(group[0])}]
        differing = [key for key in known[-1] if len({repr(each.get(key)) for each in known}) > 1]
        for config, own in zip(group, values, strict=True):
            what = ", ".join(f"{key} {shown(own.get(key))}" for key in differing)
            result[config] = OPTIMIZERS[optimizer].label + (f" ({what})" if what else "")
    return {config: result[config] for config in configs}


def defaults(config: RunConfig) -> Settings:
    """The optimizer's own arguments on the task; none of one that has to be given some."""
    counted = OPTIMIZERS[config.optimizer].from_images is not None  # to count may take as long as to read
    try:
        return resolve(config.optimizer, config.task, config.training_images if counted else 0)
    except ConfigError:
        return {}


def shown(value: object) -> str:
    """
    Example:
        >>> shown(0.0316228), shown([0.9255599999, 0.995]), shown(None)
        ('0.0316', '0.926,0.995', 'None')
    """
    if isinstance(value, list | tuple):
        return ",".join(map(shown, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(task: str, runs: Sequence[RunStatus], labels: Mapping[RunConfig, str]) -> Table:
    """Optimizers by seeds."""
    seeds = sorted({status.config.seed for status in runs})
    result = Table(title=Text(task, "bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    metric = TASKS[task].metric
    result.add_column(f"{metric.name} [%]" if metric.percent else metric.name, style="dim")
    for seed in seeds:
        result.add_column(f"seed {seed}", justify="right", no_wrap=True)
    by_label: dict[str, dict[int, RunStatus]] = {}
    for status in runs:
        by_label.setdefault(labels[status.config], {})[status.config.seed] = status
    for label, by_seed in by_label.items():
        result.add_row(Text(label), *(cell(by_seed[seed]) if seed in by_seed else "" for seed in seeds))
    return result


def cell(status: RunStatus) -> Text:
    """A run in a few letters: its metric when it is over, its epochs while it runs.

    Example:
        >>> config = RunConfig.for_task("digits-mlp", "sgd")
        >>> [cell(RunStatus(config, "training", 3.4)).plain, cell(RunStatus(config, "finished", 25.0, 0.9722)).plain]
        ['3/25', '97.22']
    """
    if status.state == "finished" and status.value is not None:
        shown = TASKS[status.config.task].metric.text(status.value).removesuffix("%")
        return Text(shown, "dim" if status.reused else "green")
    if status.state == "training":
        return Text(f"{status.epochs:.0f}/{status.config.epochs}", "bold cyan")
    if status.state == "waiting":
        return Text("·", "dim")
    return Text(status.state, "red" if status.state in ("failed", "diverged") else "yellow")


def line(status: RunStatus, label: str) -> str:
    """The same as a line of text.

    Example:
        >>> line(RunStatus(RunConfig.for_task("digits-mlp", "sgd", seed=2), "finished", 25.0, 0.9722), "SGD (lr 0.1)")
        'digits-mlp, SGD (lr 0.1), seed 2: finished, test accuracy 97.22%'
    """
    config = status.config
    words = status.message or status.state
    if status.state == "failed" and status.message:
        words = f"failed: {status.message}"
    if status.state == "finished" and status.value is not None:
        metric = TASKS[config.task].metric
        data = "validation" if config.share.fold or config.share.validation else "test"  # of the last epoch
        words += f", {data} {metric.name} {metric.text(status.value)}"
    return f"{config.task}, {label}, seed {config.seed}: {words}"


def seconds_left(runs: Sequence[RunStatus], jobs: int, expected: Mapping[Kind, float] | None = None) -> float | None:
    """From what an epoch took so far, of the same task and optimizer; else what it is expected to take; else of the same task.

    None if nothing is known of a task.

    Example:
        >>> def run(state, epochs, seconds, optimizer="sgd"):
        ...     return RunStatus(RunConfig.for_task("digits-mlp", optimizer), state, epochs, seconds=seconds)
        >>> seconds_left([run("finished", 25, 2.0), run("training", 5, 2.0)], jobs=1)  # 20 epochs of 2 seconds
        40.0
        >>> seconds_left([run("training", 5, 2.0), run("waiting", 0, None, "adam")], jobs=2)  # 20 and 25, two at a time
        45.0
        >>> waiting = run("waiting", 0, None, "adam")
        >>> seconds_left([run("training", 5, 2.0), waiting], 1, {kind_of(waiting.config): 4.0})
        140.0
        >>> seconds_left([run("waiting", 0, None)], jobs=1) is None
        True
    """
    seen: dict[Kind, list[float]] = {}
    for status in runs:
        if status.seconds is not None:
            seen.setdefault(kind_of(status.config), []).append(status.seconds)
    known = {**(expected or {}), **{kind: statistics.fmean(seconds) for kind, seconds in seen.items()}}
    total = 0.0
    for status in runs:
        if status.state in ("training", "waiting"):
            config = status.config
            of_task = [seconds for (task, *_), seconds in known.items() if task == config.task]
            if not of_task:
                return None
            total += (config.epochs - status.epochs) * known.get(kind_of(config), statistics.fmean(of_task))
    return total / jobs


def clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
