"""``arturo report DIR``: run folders as tables, one HTML page, and figures for papers."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.commands.arguments import add_command, add_target, target
from arturo_lab.report import report
from arturo_lab.report.sections import sections
from arturo_lab.runs.records import read_runs


def add(commands: Any) -> None:
    """Add the subcommand."""
    sub = add_command(
        commands,
        "report",
        "every run folder in DIR as tables, one HTML page that needs no network, and figures for papers",
        """
        arturo report runs
        arturo report runs/digits-mlp --out paper --target 0.97
        arturo report runs --no-figures
        """,
    )
    sub.add_argument("dir", type=Path, metavar="DIR", help="a folder with run folders in it, at any depth")
    sub.add_argument("--out", type=Path, metavar="DIR", help="report.html, summary.json, figures/ go there (default: into DIR)")
    add_target(sub)
    sub.add_argument("--no-figures", action="store_true", help="the page and the numbers alone")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    aim = target(arguments)
    records, problems = read_runs(arguments.dir)
    found = sections(records)
    command = shlex.join(["arturo", "report", str(arguments.dir), *([] if aim is None else ["--target", f"{aim:g}"])])
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    console = Console()
    for section in found:
        console.print(report.table(section, aim))
        console.print()
    out: Path = arguments.dir if arguments.out is None else arguments.out
    report.write(found, problems, out, command, aim, figures=not arguments.no_figures).say(console)
