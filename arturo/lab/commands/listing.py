"""``arturo list``: tasks, optimizers, and the data found."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from arturo.lab import data
from arturo.lab.commands.arguments import add_command
from arturo.lab.datasets import DATA
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.tasks import TASKS


def add(commands: Any) -> None:
    sub = add_command(commands, "list", "the tasks, the optimizers, and the data found", "arturo list")
    sub.add_argument("--data-dir", type=Path, metavar="DIR", help="folder searched for data first (default: $ARTURO_DATA)")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    Console().print(tasks(), optimizers(), data_found(arguments.data_dir), sep="\n\n")


def tasks() -> Table:
    result = Table(
        "task", "what it is", "weights", "epochs", "batch", "lr", title="Tasks", title_justify="left", caption_justify="left"
    )
    for name, task in TASKS.items():
        with torch.device("meta"):  # shapes without memory
            weights = sum(p.numel() for p in task.model().parameters())
        schedule = getattr(task.schedule, "__name__", "")
        result.add_row(name, task.title, f"{weights:,}", str(task.epochs), str(task.batch_size), schedule)
    result.caption = "milestones: at 1/2 and 3/4 of the epochs lr is multiplied by 0.1, arTuRO's by sqrt(0.006)"
    return result


def optimizers() -> Table:
    result = Table("optimizer", "label", "about", "values where none are tuned", title="Optimizers", title_justify="left")
    for name, entry in OPTIMIZERS.items():
        values = ", ".join(f"{key} {value}" for key, value in entry.values.items()) or "its defaults"
        result.add_row(name, entry.label, entry.about, values)
    return result


def data_found(data_dir: Path | None) -> Table:
    """Where each data set is, or the command that gets it."""
    result = Table("data", "images", "where", title="Data", title_justify="left")
    for name, entry in DATA.items():
        place, _ = data.find(name, data_dir)
        where = "comes with scikit-learn" if not entry.places else str(place) if place else f"not found: arturo fetch {name}"
        result.add_row(name, f"{entry.train_images:,}", where)
    return result
