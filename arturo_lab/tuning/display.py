"""A search as it is seen in a terminal: a line per trial, and below them a bar that moves. Elsewhere the lines alone."""

from __future__ import annotations

import statistics
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from arturo_lab.pool.overview import clock
from arturo_lab.tasks.metrics import ACCURACY, Metric
from arturo_lab.tuning.outcome import TrialRow

HEADING = " study  trial  state       score    best   seconds      left  values"


class SearchDisplay:
    """Shows ``on_trials`` of a search. A context manager: the bar lives inside."""

    def __init__(self, title: str, total: int, console: Console, metric: Metric = ACCURACY) -> None:
        self.metric = metric
        self.title = title
        self.console = console
        self.best: TrialRow | None = None
        self.total = total
        self.shown: dict[tuple[int, str], float] = {}  # seconds of the trials that have a line
        self.progress = Progress(
            TextColumn("trials"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("<"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[running]}"),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=1800,  # seconds of history: a pruned trial is soon over, a good one is not
            transient=True,
        )
        self.bar = self.progress.add_task("", total=total, running="")

    def __enter__(self) -> SearchDisplay:
        self.console.print(self.title, highlight=False, markup=False)
        self.console.print(HEADING, style="bold", highlight=False)
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def on_trials(self, rows: list[TrialRow], running: str) -> None:
        for row in rows:
            if (row.study, row.slot) in self.shown:
                continue
            self.shown[row.study, row.slot] = row.seconds
            left = (self.total - len(self.shown)) * statistics.fmean(self.shown.values())
            if row.state == "complete" and (self.best is None or row.score > self.best.score):
                self.best = row
            best = self._text(self.best) if self.best is not None else "     -"
            values = " ".join(f"{name}={value:.3g}" for name, value in row.params.items())
            score = self._text(row)
            self.console.print(
                f"{row.study:6d}  {row.slot[:5]:>5}  {row.state:<8}  {score:>7} {best:>7}  {row.seconds:8.1f}  {clock(left):>8}"
                f"  {values}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        note = running if self.best is None else f"best {self._text(self.best)}  {running}"
        self.progress.update(self.bar, completed=len(self.shown), running=note)

    def _text(self, row: TrialRow) -> str:
        return "-" if row.state == "diverged" and not self.metric.percent else self.metric.text(self.metric.score(row.score))
