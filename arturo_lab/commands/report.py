"""``arturo report DIR``: run folders as tables, one HTML page, and figures for papers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.options import Goal
from arturo_lab.fields import REQUIRED, group, option
from arturo_lab.report.report import Report
from arturo_lab.report.sections import sections
from arturo_lab.runs.collection import read_runs

DESCRIPTION = "Show every run folder in DIR as tables, one HTML page that needs no network, and figures for papers."
EXAMPLES = """
arturo report runs
arturo report runs/digits-mlp --out paper --target 0.97
arturo report runs --against sgd
arturo report runs --against all --no-figures
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    dir: Path = option(REQUIRED, "a folder with run folders in it, at any depth", metavar="DIR", positional=True)
    out: Path | None = option(None, "folder for report.html, summary.json, figures/ and tables/ (default: DIR)", metavar="DIR")
    goal: Goal = group(Goal, "")
    no_figures: bool = option(False, "write only the page and the numbers")


def run(options: Options, argv: Sequence[str]) -> None:
    goal = options.goal
    records, problems = read_runs(options.dir)
    shown = sections(records)
    goal.check_target(any(section.metric.unit == "%" for section in shown))
    words = [] if goal.target is None else ["--target", f"{goal.target:g}"]
    words += [] if goal.against is None else ["--against", goal.against]
    command = shlex.join(["arturo", "report", str(options.dir), *words])
    result = Report(shown, problems, command, goal.target, goal.against)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    console = Console()
    result.show(console)
    result.write(options.dir if options.out is None else options.out, figures=not options.no_figures).say(console)
