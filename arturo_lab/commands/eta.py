"""``arturo eta``: a value for the fixed multiplier, from runs with a trust region."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.commands.arguments import add_command
from arturo_lab.commands.listing import table
from arturo_lab.optimizers.fixed_eta import Multipliers, multipliers


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "eta",
        "propose a fixed multiplier for arturo-fixed-eta: the median of runs with a trust region",
        """
        arturo train digits-cnn --optimizer arturo --out runs
        arturo eta runs/digits-cnn/arturo-seed0-*
        """,
    )
    sub.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder; of several, all steps count alike")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    console = Console()
    found = {path: multipliers(path) for path in arguments.runs}
    together = Multipliers(tuple(eta for each in found.values() for eta in each.etas))
    shown = table("Multipliers", "run", "steps", "5 %", "median", "95 %")
    for path, each in [*found.items(), *([("together", together)] if len(found) > 1 else [])]:
        row = (each.quantile(0.05), each.median, each.quantile(0.95))
        shown.add_row(getattr(path, "name", str(path)), str(len(each.etas)), *(f"{value:.6g}" for value in row))
    console.print(shown)
    console.print(f"--optimizer arturo-fixed-eta --set eta={together.median:.6g}", soft_wrap=True, highlight=False)
