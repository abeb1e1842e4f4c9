"""``arturo tune-report``: several searches side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.commands.arguments import add_command


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "tune-report",
        "several searches side by side: tables, and what k trials were worth for each optimizer",
        "arturo tune-report runs/tune/digits-cnn-sgd.json runs/tune/digits-cnn-arturo.json --out results/tune",
    )
    sub.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `arturo tune` wrote")
    sub.add_argument("--out", type=Path, default=Path("runs/tune"), metavar="DIR", help="default: runs/tune")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from arturo_lab.tuning.overview import overview, read_found

    console = Console()
    result = overview([read_found(file) for file in arguments.files])
    result.show(console)
    for path in result.write(arguments.out):
        console.print(str(path), highlight=False, soft_wrap=True)
