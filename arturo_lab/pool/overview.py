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
from arturo_lab.pool.board import OVER, News
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig


class Overview:
    """Shows the news of :func:`arturo_lab.pool.workers.train_all`. A context manager: the picture lives inside.

    Args:
        configs: all that there will be news of.
        jobs: how many run at once.
        console: where to.
    """

    def __init__(self, configs: Sequence[RunConfig], jobs: int, console: Console) -> None:
        self.news = {config: News(config, "waiting") for config in configs}
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

    def on_news(self, news: News) -> None:
        self.news[news.config] = news
        if not news.reused and (news.message or (news.state in OVER and not self.console.is_terminal)):
            self.console.print(line(news), highlight=False, soft_wrap=True)

    def picture(self) -> RenderableType:
        """How far all of it is, and below a table for each task; only those under way if there is no room for all."""
        runs = list(self.news.values())
        tasks: dict[str, list[News]] = {}
        for news in runs:
            tasks.setdefault(news.config.task, []).append(news)
        tables = {task: table(task, rows) for task, rows in tasks.items()}
        if sum(each.row_count + 4 for each in tables.values()) + 2 > self.console.height:
            tables = {task: tables[task] for task, rows in tasks.items() if any(news.state == "training" for news in rows)}
        return Group(self.bar(runs), *tables.values())

    def bar(self, runs: Sequence[News]) -> RenderableType:
        left = seconds_left(runs, self.jobs)
        over = sum(news.state in OVER for news in runs)
        total = sum(news.config.epochs for news in runs)
        done = sum(news.config.epochs if news.state in OVER else news.epochs for news in runs)
        result = Table.grid(padding=(0, 1))
        result.add_row(
            f"{over} of {count(len(runs), 'run')}",
            ProgressBar(total=total, completed=done, width=30),
            f"{clock(time.monotonic() - self.began)} gone, {'some time' if left is None else clock(left)} left",
        )
        return result


def table(task: str, runs: Sequence[News]) -> Table:
    """Optimizers by seeds."""
    seeds = sorted({news.config.seed for news in runs})
    result = Table(title=task, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("accuracy [%]", style="dim", no_wrap=True)
    for seed in seeds:
        result.add_column(f"seed {seed}", justify="right", no_wrap=True)
    by_optimizer: dict[str, dict[int, News]] = {}
    for news in runs:
        by_optimizer.setdefault(news.config.optimizer, {})[news.config.seed] = news
    for optimizer, found in by_optimizer.items():
        result.add_row(OPTIMIZERS[optimizer].label, *(cell(found[seed]) if seed in found else "" for seed in seeds))
    return result


def cell(news: News) -> Text:
    """A run in a few letters: its accuracy when it is over, its epochs while it runs.

    Example:
        >>> config = RunConfig.for_task("digits-mlp", "sgd")
        >>> [cell(News(config, "training", 3.4)).plain, cell(News(config, "finished", 25.0, 0.9722)).plain]
        ['3/25', '97.22']
    """
    if news.state == "finished" and news.accuracy is not None:
        return Text(f"{100 * news.accuracy:.2f}", "dim" if news.reused else "green")
    if news.state == "training":
        return Text(f"{news.epochs:.0f}/{news.config.epochs}", "bold cyan")
    if news.state == "waiting":
        return Text("·", "dim")
    return Text(news.state, "red" if news.state in ("failed", "diverged") else "yellow")


def line(news: News) -> str:
    """The same as a line of its own.

    Example:
        >>> line(News(RunConfig.for_task("digits-mlp", "sgd", seed=2), "finished", 25.0, 0.9722))
        'digits-mlp, SGD, seed 2: finished, test accuracy 97.22 %'
    """
    config = news.config
    said = news.state if not news.message else f"{news.state}: {news.message}" if news.state == "failed" else news.message
    if news.state == "finished" and news.accuracy is not None:
        said += f", test accuracy {100 * news.accuracy:.2f} %"
    return escape(f"{config.task}, {OPTIMIZERS[config.optimizer].label}, seed {config.seed}: {said}")


def seconds_left(runs: Sequence[News], jobs: int) -> float | None:
    """From what an epoch took so far, of the same task and optimizer, else of the same task; None if a task is unknown.

    Example:
        >>> def run(state, epochs, seconds, optimizer="sgd"):
        ...     return News(RunConfig.for_task("digits-mlp", optimizer), state, epochs, seconds=seconds)
        >>> seconds_left([run("finished", 25, 2.0), run("training", 5, 2.0)], jobs=1)  # 20 epochs of 2 seconds
        40.0
        >>> seconds_left([run("training", 5, 2.0), run("waiting", 0, None, "adam")], jobs=2)  # 20 and 25, two at a time
        45.0
        >>> seconds_left([run("waiting", 0, None)], jobs=1) is None
        True
    """
    known: dict[tuple[str, ...], list[float]] = {}
    for news in runs:
        if news.seconds is not None:
            for key in ((news.config.task, news.config.optimizer), (news.config.task,)):
                known.setdefault(key, []).append(news.seconds)
    total = 0.0
    for news in runs:
        if news.state in ("training", "waiting"):
            config = news.config
            taken = known.get((config.task, config.optimizer)) or known.get((config.task,))
            if taken is None:
                return None
            total += (config.epochs - news.epochs) * sum(taken) / len(taken)
    return total / jobs


def clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
