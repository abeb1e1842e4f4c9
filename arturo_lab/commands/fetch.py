"""``arturo fetch``: download data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from arturo_lab.commands.options import DataSource
from arturo_lab.data import loading
from arturo_lab.data.download import RemoteFile
from arturo_lab.data.examples import Examples
from arturo_lab.data.sources import DATA
from arturo_lab.fields import REQUIRED, option

DESCRIPTION = "Download data sets. Resumes an interrupted download and rejects a file with the wrong checksum."
EXAMPLES = """
arturo fetch fashion-mnist
arturo fetch cifar10 cifar100 --data-dir ~/data
arturo fetch cifar10 --mirror https://mirror.example.org/datasets
"""
AVAILABLE = ", ".join(name for name, entry in DATA.items() if entry.files)


@dataclass(frozen=True, kw_only=True)
class Options:
    names: tuple[str, ...] = option(REQUIRED, f"one or more of {AVAILABLE}", metavar="NAME", positional=True)
    data_dir: Path | None = option(None, "target folder (default: $ARTURO_DATA, else your cache folder)", metavar="DIR")
    mirror: str | None = option(None, "download from URL/FILE instead of the official address", metavar="URL")


def run(options: Options, argv: Sequence[str]) -> None:
    _ = [DATA[name] for name in options.names]  # an unknown name stops before the first byte
    for name in options.names:
        fetch(name, options.data_dir, options.mirror, Console())


def fetch(name: str, data_dir: Path | None, mirror: str | None, console: Console) -> None:
    """Download a data set unless it exists, with a progress bar per file, and print where it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars: dict[RemoteFile, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def on_progress(file: RemoteFile, done: int) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file.name, total=file.size)
            progress.update(bars[file], completed=done)

        place = loading.fetch(name, data_dir, mirror, on_progress)
    entry, how = DATA[name], "downloaded to" if bars else "is in"
    where = f"{how} {place}" if entry.places else f"comes with {entry.comes_with}"
    console.print(f"{name}: {where}", soft_wrap=True, highlight=False, markup=False)


def provide(data: loading.Source, source: DataSource, console: Console) -> Examples:
    """The data set, fetched first if it is missing and ``--download`` says so."""
    named = source.data_dir
    missing = named is not None and not named.exists()
    if source.download and isinstance(data, str) and (loading.find(data, named)[0] is None or missing):
        fetch(data, named, source.mirror, console)
    else:
        source.check_folder()
    return loading.load(data, named)
