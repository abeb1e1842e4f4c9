"""``arturo eta``: a value for the fixed multiplier, from runs with a trust region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from arturo_lab.commands.listing import table
from arturo_lab.fields import REQUIRED, option
from arturo_lab.optimizers.fixed_eta import Multipliers, multipliers

DESCRIPTION = "Propose a fixed multiplier for arturo-fixed-eta: the median of runs with a trust region."
EXAMPLES = """
arturo train digits-cnn --optimizer arturo --out runs
arturo eta runs/digits-cnn/arturo-seed0-*
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    runs: tuple[Path, ...] = option(REQUIRED, "run folder; the steps of several are pooled", metavar="RUN", positional=True)


def run(options: Options, argv: Sequence[str]) -> None:
    console = Console()
    by_run = {path: multipliers(path) for path in options.runs}
    together = Multipliers(tuple(eta for each in by_run.values() for eta in each.etas))
    summary = table("Multipliers", "run", "steps", "5 %", "median", "95 %")
    for path, each in [*by_run.items(), *([("together", together)] if len(by_run) > 1 else [])]:
        row = (each.quantile(0.05), each.median, each.quantile(0.95))
        summary.add_row(Text(getattr(path, "name", str(path))), str(len(each.etas)), *(f"{value:.6g}" for value in row))
    console.print(summary)
    console.print(f"--optimizer arturo-fixed-eta --set eta={together.median:.6g}", soft_wrap=True, highlight=False)
