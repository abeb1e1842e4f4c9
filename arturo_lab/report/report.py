"""What runs come to: a table for the terminal, summary.json for other programs, one HTML page, figures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.markup
from rich import box
from rich.console import Console
from rich.table import Table

from arturo_lab.report.plots import write_figures
from arturo_lab.report.report_page import report_page
from arturo_lab.report.report_tables import against_best
from arturo_lab.report.sections import Section
from arturo_lab.report.summary import summary
from arturo_lab.report.wording import count, duration, fraction, mean_with_error, p_value, protocol_words
from arturo_lab.runs import atomic
from arturo_lab.runs.records import Problem


@dataclass(frozen=True)
class Written:
    """Where it went."""

    page: Path
    summary: Path
    figures: tuple[Path, ...]

    def say(self, console: Console) -> None:
        """The pictures that hold all panels, the page, the numbers."""
        for path in self.figures:
            if path.suffix == ".png" and not any(path.stem.startswith(f"{other.stem}-") for other in self.figures):
                console.print(f"figure: {path}", soft_wrap=True, highlight=False)
        console.print(f"page: {self.page}", soft_wrap=True, highlight=False)
        console.print(f"numbers: {self.summary}", soft_wrap=True, highlight=False)


def write(
    sections: Sequence[Section],
    problems: Sequence[Problem],
    folder: Path,
    command: str,
    target: float | None = None,
    figures: bool = True,
) -> Written:
    """Write report.html, summary.json and figures/ to ``folder``. ``target``: see :meth:`Section.summary`."""
    folder.mkdir(parents=True, exist_ok=True)
    result = Written(
        folder / "report.html",
        folder / "summary.json",
        tuple(write_figures(sections, folder / "figures")) if figures else (),
    )
    atomic.write_json(result.summary, summary(sections, command, target))
    atomic.write(result.page, report_page(sections, problems, command, target).encode())
    return result


def table(section: Section, target: float | None = None) -> Table:
    """One row per optimizer, the same numbers as on the page; the best mean in bold."""
    aim = section.target if target is None else target
    to = "to -" if aim is None else f"to {fraction(aim)} %"
    title = rich.markup.escape(f"{section.title}: {protocol_words(section.protocol)}")
    result = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    result.caption = (
        "± doubled standard error, below it a 95 % bootstrap interval; to the best: points, and p by a paired t-test "
        "over the seeds with Holm's correction"
    )
    for heading in ("optimizer", "accuracy [%]", "to best", "loss", "epoch", to, "runs"):
        result.add_column(heading, justify="left" if heading == "optimizer" else "right", no_wrap=heading != "optimizer")
    for row in section.summary(target):
        accuracy = "-" if row.accuracy is None else mean_with_error(row.accuracy, 100, 2)
        accuracy = f"[bold]{accuracy}[/]" if row.best else accuracy
        if row.interval is not None:
            accuracy += f"\n[dim]{fraction(row.interval[0], 2)} to {fraction(row.interval[1], 2)}[/]"
        seconds = row.variant.seconds_per_epoch
        reached = f"{row.reached} of {len(row.variant.runs)}"
        if row.epochs_to_target is not None and row.seconds_to_target is not None:
            reached = f"{count(row.epochs_to_target, 'epoch')}\n[dim]{duration(row.seconds_to_target)}[/]"
        lost = [f"[dim]{n} {status}[/]" for status in ("diverged", "unfinished") if (n := len(row.variant.with_status(status)))]
        result.add_row(
            "\n".join([rich.markup.escape(row.variant.label), *lost]),
            accuracy,
            "best" if row.best else against_best(row) + (f"\n[dim]{p_value(row.p, row.pairs)}[/]" if row.p is not None else ""),
            "-" if row.loss is None else f"{row.loss.mean:.4f}",
            "-" if seconds is None else duration(seconds),
            reached,
            str(len(row.variant.finished)),
        )
    return result
