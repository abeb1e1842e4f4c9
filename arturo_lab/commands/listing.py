"""``arturo list``: tasks, optimizers, and the data found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arturo_lab.commands.options import DataFolder
from arturo_lab.fields import group

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = "arturo list"


@dataclass(frozen=True, kw_only=True)
class Options:
    data: DataFolder = group(DataFolder, "")


def run(options: Options, argv: Sequence[str]) -> None:
    from rich.console import Console

    options.data.check_folder()
    Console().print(tasks(), optimizers(), data_found(options.data.data_dir), sep="\n")


def table(title: str, *columns: str) -> Table:
    """Plain, so that it fits 80 columns; the names in the first column are for copying and never cut."""
    from rich import box
    from rich.table import Table

    result = Table(
        title=title, title_justify="left", title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for i, column in enumerate(columns):
        result.add_column(
            column, no_wrap=i == 0, justify="right" if column in ("weights", "epochs", "batch", "examples") else "left"
        )
    return result


def tasks() -> Table:
    import torch

    from arturo_lab.tasks.catalog import TASKS

    result = table("Tasks", "task", "what it is", "weights", "epochs", "batch")
    for name, task in TASKS.items():
        with torch.device("meta"):  # shapes without memory
            weights = sum(p.numel() for p in task.model().parameters())
        result.add_row(name, task.title, f"{weights:,}", str(task.epochs), str(task.batch_size))
    result.caption = (
        "lr falls to 0 along a cosine; for the tasks of 120 and 160 epochs, at 1/2 and 3/4 of them, times 0.1, arTuRO's times "
        "sqrt(0.006). --schedule chooses. Others: file.py:TASK, package.module:TASK (docs/extending.md)\n"
    )
    return result


def optimizers() -> Table:
    from arturo_lab.optimizers.catalog import OPTIMIZERS

    result = table("Optimizers", "optimizer", "label", "what it is")
    for name, entry in OPTIMIZERS.items():
        result.add_row(name, entry.label, entry.about)
    result.caption = (
        "These values are for tasks without tuned ones; --set changes any of them. Others: file.py:Class, "
        "package.module:Class, po:Name of pytorch-optimizer (docs/extending.md)\n"
    )
    return result


def data_found(data_dir: Path | None) -> Table:
    """Where each data set is, or the command that gets it."""
    from rich.text import Text

    from arturo_lab.data import loading
    from arturo_lab.data.sources import DATA

    result = table("Data", "data", "examples", "where")
    for name, entry in DATA.items():
        place, _ = loading.find(name, data_dir)
        files = str(place) if place else f"not found: arturo fetch {name}"
        where = files if entry.places else f"comes with {entry.comes_with}"
        result.add_row(name, f"{entry.examples:,}" if entry.examples else "", Text(where))
    return result
