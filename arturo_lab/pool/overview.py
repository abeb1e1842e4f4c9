"""All runs of a comparison at a glance, while they run. Where there is no terminal: a line for each that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.pool.status import OVER, RunStatus
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS


class Overview:
    """Shows the status of :func:`arturo_lab.pool.workers.train_all`. A context manager: the picture lives inside.

    Args:
        configs: all that there will be status of.
        jobs: how many run at once.
        console: where to.
    """

    def __init__(self, configs: Sequence[RunConfig], jobs: int, console: Console) -> None:
        self.status = {config: RunStatus(config, "waiting") for config in configs}
        self.jobs = jobs
        self.console = console
        self.began = time.monotonic()
        self.live = Live(get_renderable=self.picture, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Overview:
        self.began = time.monotonic()
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.live.stop()

    def on_status(self, status: RunStatus) -> None:
        self.status[status.config] = status
        if not status.reused and (status.message or (status.state in OVER and not self.console.is_terminal)):
            self.console.print(line(status), highlight=False, soft_wrap=True)

    def picture(self) -> RenderableType:
        """How far all of it is, and below a table for each task; only those under way if there is no room for all."""
        runs = list(self.status.values())
        tasks: dict[str, list[RunStatus]] = {}
        for status in runs:
            tasks.setdefault(status.config.task, []).append(status)
        tables = {task: table(task, rows) for task, rows in tasks.items()}
        if sum(each.row_count + 4 for each in tables.values()) + 2 > self.console.height:
            tables = {task: tables[task] for task, rows in tasks.items() if any(status.state == "training" for status in rows)}
        return Group(self.bar(runs), *tables.values())

    def bar(self, runs: Sequence[RunStatus]) -> RenderableType:
        left = seconds_left(runs, self.jobs)
        over = sum(status.state in OVER for status in runs)
        total = sum(status.config.epochs for status in runs)
        done = sum(status.config.epochs if status.state in OVER else status.epochs for status in runs)
        result = Table.grid(padding=(0, 1))
        result.add_row(
            f"{over} of {count(len(runs), 'run')}",
            ProgressBar(total=total, completed=done, width=30),
            f"{clock(time.monotonic() - self.began)} gone, {'some time' if left is None else clock(left)} left",
        )
        return result


def table(task: str, runs: Sequence[RunStatus]) -> Table:
    """Optimizers by seeds."""
    seeds = sorted({status.config.seed for status in runs})
    result = Table(title=task, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    metric = TASKS[task].metric
    result.add_column(f"{metric.name} [%]" if metric.percent else metric.name, style="dim", no_wrap=True)
    for seed in seeds:
        result.add_column(f"seed {seed}", justify="right", no_wrap=True)
    by_optimizer: dict[str, dict[int, RunStatus]] = {}
    for status in runs:
        by_optimizer.setdefault(status.config.optimizer, {})[status.config.seed] = status
    for optimizer, found in by_optimizer.items():
        result.add_row(OPTIMIZERS[optimizer].label, *(cell(found[seed]) if seed in found else "" for seed in seeds))
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


def line(status: RunStatus) -> str:
    """The same as a line of its own.

    Example:
        >>> line(RunStatus(RunConfig.for_task("digits-mlp", "sgd", seed=2), "finished", 25.0, 0.9722))
        'digits-mlp, SGD, seed 2: finished, test accuracy 97.22%'
    """
    config = status.config
    said = (
        status.state
        if not status.message
        else f"{status.state}: {status.message}"
        if status.state == "failed"
        else status.message
    )
    if status.state == "finished" and status.value is not None:
        metric = TASKS[config.task].metric
        said += f", test {metric.name} {metric.text(status.value)}"
    return escape(f"{config.task}, {OPTIMIZERS[config.optimizer].label}, seed {config.seed}: {said}")


def seconds_left(runs: Sequence[RunStatus], jobs: int) -> float | None:
    """From what an epoch took so far, of the same task and optimizer, else of the same task; None if a task is unknown.

    Example:
        >>> def run(state, epochs, seconds, optimizer="sgd"):
        ...     return RunStatus(RunConfig.for_task("digits-mlp", optimizer), state, epochs, seconds=seconds)
        >>> seconds_left([run("finished", 25, 2.0), run("training", 5, 2.0)], jobs=1)  # 20 epochs of 2 seconds
        40.0
        >>> seconds_left([run("training", 5, 2.0), run("waiting", 0, None, "adam")], jobs=2)  # 20 and 25, two at a time
        45.0
        >>> seconds_left([run("waiting", 0, None)], jobs=1) is None
        True
    """
    known: dict[tuple[str, ...], list[float]] = {}
    for status in runs:
        if status.seconds is not None:
            for key in ((status.config.task, status.config.optimizer), (status.config.task,)):
                known.setdefault(key, []).append(status.seconds)
    total = 0.0
    for status in runs:
        if status.state in ("training", "waiting"):
            config = status.config
            taken = known.get((config.task, config.optimizer)) or known.get((config.task,))
            if taken is None:
                return None
            total += (config.epochs - status.epochs) * sum(taken) / len(taken)
    return total / jobs


def clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
