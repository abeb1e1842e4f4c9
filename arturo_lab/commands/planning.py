"""Plan before work: the runs, the time they will take, the disk space they need."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from arturo_lab.fields import option
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.pool.cost import Cost, Kind, kind_of
from arturo_lab.report.table import Cell, Column, Table
from arturo_lab.report.wording import count
from arturo_lab.report.writers import show
from arturo_lab.runs.config import RunConfig

ASK_SECONDS = 600.0  # work that takes longer is confirmed first


@dataclass(frozen=True)
class Planning:
    """Whether to work or only to plan."""

    plan: bool = option(False, "only show the runs, the time they will take and the disk space they need")
    yes: bool = option(False, "start without asking, however long it takes")
    reuse: bool = option(
        False, "use existing runs even if their code, data or threads have changed, instead of training them again"
    )


@dataclass(frozen=True)
class PlannedRuns:
    """Runs that cost alike: one task, one optimizer."""

    config: RunConfig  # one of them
    runs: int  # still to train
    epochs: float  # left in all of them
    kept: int  # how many of their folders are on the disk at the same time
    jobs: int = 1  # at a time

    def seconds(self, cost: Cost) -> float:
        return self.epochs * cost.epoch_seconds / max(min(self.jobs, self.runs), 1)


@dataclass(frozen=True)
class Plan:
    """Everything that a command is about to do.

    Args:
        groups: the runs.
        costs: what is known of them.
        out: where they go.
        other_seconds: of what is not training, such as predictions.
        at_most: whether the time is an upper limit.
    """

    groups: Sequence[PlannedRuns]
    costs: Mapping[Kind, Cost]
    out: Path
    other_seconds: float = 0.0
    at_most: bool = False

    @property
    def runs(self) -> int:
        return sum(group.runs for group in self.groups)

    @property
    def seconds(self) -> float | None:
        """None while the cost of some runs is unknown."""
        if any(group.runs and kind_of(group.config) not in self.costs for group in self.groups):
            return None
        return self.other_seconds + sum(g.seconds(self.costs[kind_of(g.config)]) for g in self.groups if g.runs)

    @property
    def bytes(self) -> float:
        known = (group for group in self.groups if kind_of(group.config) in self.costs)
        return sum(group.kept * self.costs[kind_of(group.config)].run_bytes(group.config) for group in known)

    def summary(self) -> str:
        """One line."""
        if not self.runs and not self.other_seconds:
            return "nothing to train"
        seconds = self.seconds
        time = (
            "time unknown until the first epochs"
            if seconds is None
            else f"{'at most' if self.at_most else 'about'} {duration(seconds)}"
        )
        jobs = max((group.jobs for group in self.groups), default=1)
        at_once = f", {jobs} at a time" if jobs > 1 else ""
        return f"{count(self.runs, 'run')} to train{at_once}: {time}, {size(self.bytes)} on disk"

    def show(self, console: Console) -> None:
        rows = []
        for group in self.groups:
            config, cost = group.config, self.costs.get(kind_of(group.config))
            numbers = (
                str(group.runs),
                str(config.epochs),
                "?" if cost is None else duration(cost.run_seconds(config)),
                "?" if cost is None else duration(group.seconds(cost)) if group.runs else "-",
                "?" if cost is None else size(group.kept * cost.run_bytes(config)),
            )
            rows.append(tuple(map(Cell, (config.task, OPTIMIZERS[config.optimizer].label, *numbers))))
        names = (Column("task", align="left"), Column("optimizer", align="left"))
        show(Table("plan", "Plan", (*names, *map(Column, ("runs", "epochs", "one run", "all", "disk"))), tuple(rows)), console)
        console.print(self.summary(), highlight=False, soft_wrap=True)
        if (free := free_bytes(self.out)) < self.bytes:
            console.print(f"only {size(free)} free in {self.out}", style="bold", highlight=False, markup=False, soft_wrap=True)

    def approved(self, options: Planning, console: Console) -> bool:
        """Whether to start: not with ``--plan``; not if somebody at the terminal says no to more than ten minutes."""
        if options.plan:
            self.show(console)
            return False
        if not self.runs:
            return True
        long = self.seconds is None or self.seconds > ASK_SECONDS
        if options.yes or not long or not (console.is_terminal and sys.stdin.isatty()):
            console.print(self.summary(), highlight=False, soft_wrap=True)
            return True
        self.show(console)
        answer = console.input(Text("Start? (--yes skips this question) [y/N] "))
        return answer.strip().lower() in ("y", "yes")


def duration(seconds: float) -> str:
    """
    Example:
        >>> [duration(seconds) for seconds in (0.2, 75, 3700, 86400, 18_835_200)]
        ['1 s', '1 min 15 s', '1 h 1 min', '24 h', '218 days']
    """
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 3600:
        return f"{round(whole / 60)} min"
    if 36000 <= whole < 2 * 86400:
        return f"{round(whole / 3600)} h"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{round(whole / 86400):,} days"


def size(amount: float) -> str:
    """
    Example:
        >>> [size(amount) for amount in (900, 52_000, 1.25e9)]
        ['0.9 kB', '52 kB', '1.2 GB']
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if amount >= factor:
            return f"{amount / factor:.3g} {unit}" if amount >= 10 * factor else f"{amount / factor:.1f} {unit}"
    return f"{amount / 1e3:.0f} kB" if amount >= 1e4 else f"{amount / 1e3:.1f} kB"


def free_bytes(path: Path) -> int:
    """Of the file system that a folder is on, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
