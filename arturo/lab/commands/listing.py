"""``arturo list``: tasks, optimizers, and the data found."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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
    tasks = Table("task", "what it is", "epochs", "batch size", title="Tasks", title_justify="left")
    for name, task in TASKS.items():
        tasks.add_row(name, task.title, str(task.epochs), str(task.batch_size))
    optimizers = Table("optimizer", "label", "settings", title="Optimizers", title_justify="left")
    for name, entry in OPTIMIZERS.items():
        optimizers.add_row(name, entry.label, entry.settings)
    Console().print(tasks, optimizers, data_found(arguments.data_dir), sep="\n\n")


def data_found(data_dir: Path | None) -> Table:
    """Where each data set is, or the command that gets it."""
    result = Table("data", "images", "where", title="Data", title_justify="left")
    for name, entry in DATA.items():
        place, _ = data.find(name, data_dir)
        where = "comes with scikit-learn" if not entry.places else str(place) if place else f"not found: arturo fetch {name}"
        result.add_row(name, f"{entry.train_images:,}", where)
    return result
