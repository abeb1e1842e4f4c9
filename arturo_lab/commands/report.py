"""``arturo report DIR``: run folders as tables, one HTML page, and figures for papers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.options import Target
from arturo_lab.fields import REQUIRED, group, option
from arturo_lab.report import report
from arturo_lab.report.sections import sections
from arturo_lab.runs.records import read_runs

DESCRIPTION = "Show every run folder in DIR as tables, one HTML page that needs no network, and figures for papers."
EXAMPLES = """
arturo report runs
arturo report runs/digits-mlp --out paper --target 0.97
arturo report runs --no-figures
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    dir: Path = option(REQUIRED, "a folder with run folders in it, at any depth", metavar="DIR", positional=True)
    out: Path | None = option(None, "folder for report.html, summary.json and figures/ (default: DIR)", metavar="DIR")
    goal: Target = group(Target, "")
    no_figures: bool = option(False, "write only the page and the numbers")


def run(options: Options, argv: Sequence[str]) -> None:
    aim = options.goal.target
    records, problems = read_runs(options.dir)
    found = sections(records)
    command = shlex.join(["arturo", "report", str(options.dir), *([] if aim is None else ["--target", f"{aim:g}"])])
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    console = Console()
    for section in found:
        console.print(report.table(section, aim))
        console.print()
    out: Path = options.dir if options.out is None else options.out
    report.write(found, problems, out, command, aim, figures=not options.no_figures).say(console)
