"""``arturo report DIR``: run folders as tables, one HTML page, and figures for papers."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.commands.arguments import add_against, add_command, add_target, target
from arturo_lab.report.report import Report
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
        arturo report runs --against sgd
        arturo report runs --against all --no-figures
        """,
    )
    sub.add_argument("dir", type=Path, metavar="DIR", help="a folder with run folders in it, at any depth")
    sub.add_argument(
        "--out", type=Path, metavar="DIR", help="report.html, summary.json, figures/, tables/ go there (default: into DIR)"
    )
    add_target(sub)
    add_against(sub)
    sub.add_argument("--no-figures", action="store_true", help="the page and the numbers alone")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """The command."""
    aim = target(arguments)
    records, problems = read_runs(arguments.dir)
    options = [] if aim is None else ["--target", f"{aim:g}"]
    options += [] if arguments.against is None else ["--against", arguments.against]
    command = shlex.join(["arturo", "report", str(arguments.dir), *options])
    result = Report(sections(records), problems, command, aim, arguments.against)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    console = Console()
    result.show(console)
    out: Path = arguments.dir if arguments.out is None else arguments.out
    result.write(out, figures=not arguments.no_figures).say(console)
