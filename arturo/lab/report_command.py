"""``arturo report DIR``: run folders as tables, one HTML page, and figures for papers."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import rich.markup
from rich import box
from rich.console import Console
from rich.table import Table

from arturo.lab.plots import write_figures
from arturo.lab.records import read_runs
from arturo.lab.registry import ConfigError
from arturo.lab.report_page import report_page
from arturo.lab.sections import Section, sections
from arturo.lab.wording import count, duration, fraction, mean_with_error, p_value, protocol_words


def add(commands: Any) -> None:
    """Add the subcommand."""
    sub: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="run folders as tables, one HTML page and figures for papers",
        description="Read every run folder in DIR; print tables, write one HTML page that needs no network, and figures.",
        epilog="examples:\n"
        "  arturo report runs\n"
        "  arturo report runs/digits-mlp --out paper --target 0.97\n"
        "  arturo report runs --no-figures\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("dir", type=Path, metavar="DIR", help="a folder with run folders in it, at any depth")
    sub.add_argument("--out", type=Path, metavar="DIR", help="report.html and figures/ go there (default: into DIR itself)")
    sub.add_argument("--target", type=float, metavar="F", help="accuracy to time, a fraction (default: the middle optimizer's)")
    sub.add_argument("--no-figures", action="store_true", help="the page alone")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    target = arguments.target
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"target: must be a fraction above 0 and up to 1, such as 0.9, got {target:g}")
    records, problems = read_runs(arguments.dir)
    found = sections(records)
    out: Path = arguments.dir if arguments.out is None else arguments.out
    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["arturo", "report", str(arguments.dir), *([] if target is None else ["--target", f"{target:g}"])])

    console = Console()
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    for section in found:
        console.print(table(section, target))
        console.print()
    page = out / "report.html"
    replace(page, report_page(found, problems, command, target))
    if not arguments.no_figures:
        paths = write_figures(found, out / "figures")
        console.print(f"figures: {out / 'figures'} ({len(paths)} files)", soft_wrap=True, highlight=False)
    console.print(f"page: {page}", soft_wrap=True, highlight=False)


def table(section: Section, target: float | None = None) -> Table:
    """One row per optimizer, the same numbers as on the page; the best mean in bold."""
    aim = section.target if target is None else target
    to = "to -" if aim is None else f"to {fraction(aim)} %"
    title = rich.markup.escape(f"{section.title}: {protocol_words(section.protocol)}")
    result = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    result.caption = "± doubled standard error, below it a 95 % bootstrap interval; p: paired sign-flip test against the best"
    for heading in ("optimizer", "accuracy [%]", "p", "loss", "per epoch", to, "runs"):
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
            "best" if row.best else "-" if row.p is None else p_value(row.p, row.pairs).removeprefix("p = "),
            "-" if row.loss is None else f"{row.loss.mean:.4f}",
            "-" if seconds is None else duration(seconds),
            reached,
            str(len(row.variant.finished)),
        )
    return result


def replace(path: Path, text: str) -> None:
    """In one go: a reader sees the old page or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
