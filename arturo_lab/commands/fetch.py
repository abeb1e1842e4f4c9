"""``arturo fetch``: download data sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from arturo_lab.commands.arguments import add_command
from arturo_lab.data import loading
from arturo_lab.data.download import RemoteFile
from arturo_lab.data.sources import DATA


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "fetch",
        "download data sets; goes on where it was interrupted, believes nothing without the right checksum",
        """
        arturo fetch fashion-mnist
        arturo fetch cifar10 cifar100 --data-dir ~/data
        arturo fetch cifar10 --mirror https://mirror.example.org/datasets
        """,
    )
    names = [name for name, entry in DATA.items() if entry.files]
    sub.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of {', '.join(names)}")
    sub.add_argument("--data-dir", type=Path, metavar="DIR", help="where to (default: $ARTURO_DATA, else your cache folder)")
    sub.add_argument("--mirror", metavar="URL", help="download from URL/FILE instead of the official place")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    _ = [DATA[name] for name in arguments.names]  # an unknown name stops before the first byte
    for name in arguments.names:
        fetch(name, arguments.data_dir, arguments.mirror, Console())


def fetch(name: str, data_dir: Path | None, mirror: str | None, console: Console) -> None:
    """Download a data set unless it is there, with a progress bar per file, and say where it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars: dict[RemoteFile, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def on_progress(file: RemoteFile, done: int) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file.name, total=file.size)
            progress.update(bars[file], completed=done)

        place = loading.fetch(name, data_dir, mirror, on_progress)
    where = "comes with scikit-learn" if not DATA[name].places else f"{'downloaded to' if bars else 'is in'} {place}"
    console.print(f"{name}: {where}", soft_wrap=True, highlight=False)


def provide(name: str, arguments: argparse.Namespace, console: Console) -> loading.ImageData:
    """The data set, fetched first if ``arguments`` of :func:`add_data` ask for it and it is not there."""
    named = arguments.data_dir
    if arguments.download and (loading.find(name, named)[0] is None or (named is not None and not named.exists())):
        fetch(name, arguments.data_dir, arguments.mirror, console)
    return loading.load(name, arguments.data_dir)
