"""``arturo tune-report``: several searches side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.errors import ConfigError
from arturo_lab.fields import REQUIRED, option

DESCRIPTION = "Show several searches side by side: tables, and each optimizer's best result after k trials."
EXAMPLES = "arturo tune-report runs/tune/digits-cnn-sgd.json runs/tune/digits-cnn-arturo.json --out runs/tune"


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[Path, ...] = option(REQUIRED, "result file of `arturo tune`", metavar="FILE", positional=True)
    out: Path = option(Path("runs/tune"), "folder for the tables and figures", metavar="DIR")


def run(options: Options, argv: Sequence[str]) -> None:
    from arturo_lab.tuning.overview import overview, read_search

    for file in options.files:
        if not file.is_file():
            raise ConfigError(f"FILE: {file} does not exist; name what `arturo tune --out` wrote")
    console = Console()
    result = overview([read_search(file) for file in options.files])
    result.show(console)
    for path in result.write(options.out):
        console.print(str(path), highlight=False, markup=False, soft_wrap=True)
