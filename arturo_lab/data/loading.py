"""Data sets by name, as tensors in memory.

Images stay uint8 (N, C, H, W), a quarter of the float32 size; :mod:`arturo_lab.data.augment` turns one batch at a
time into what a network takes. Files are searched in this order: ``data_dir``, ``$ARTURO_DATA``, what a package
installed, the user's cache.
Nothing is downloaded unless asked for: :func:`fetch`, the command ``arturo fetch``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from arturo_lab.data.download import RemoteFile, download
from arturo_lab.data.examples import Examples
from arturo_lab.data.sources import DataSet, as_examples, check_digest, data_set, name_of
from arturo_lab.errors import ConfigError, DataNotFound

Source = str | DataSet | Callable[[], Examples]  # a name of DATA, or what a task brings


def load(data: Source, data_dir: str | Path | None = None) -> Examples:
    """Load a data set.

    Args:
        data: a name of ``DATA`` such as ``"digits"``, or what a task brings instead.
        data_dir: folder searched first; data that comes with a package needs none.

    Raises:
        ConfigError: unknown name.
        DataError: a file whose content is not what it should be.
        DataNotFound: the files were not found; the message lists the places searched.
    """
    entry, name = data_set(data), name_of(data)
    if data_dir is not None and entry.places and not Path(data_dir).is_dir():
        raise ConfigError(f"data-dir: {data_dir} {'is not a folder' if Path(data_dir).exists() else 'does not exist'}")
    place, searched = find(data, data_dir)
    if place is None:
        raise DataNotFound(
            f"{entry.title} not found. Looked in\n"
            + "\n".join(f"  {line}" for line in searched)
            + f"\nTo get it:\n  arturo fetch {name}\n  arturo fetch {name} --mirror URL\n"
            + (f"  {entry.also}\n" if entry.also else "")
            + "or name the folder that has it with --data-dir or ARTURO_DATA."
        )
    content = as_examples(name, entry, entry.read(place))
    check_digest(name, entry, content, place)
    return content


def count(data: Source) -> int:
    """How many examples there are to train on, without reading them where that is known."""
    known = data_set(data).examples
    return len(_embedded(data)) if known is None else known


@lru_cache(maxsize=2)
def _embedded(data: Source) -> Examples:
    return load(data)


def find(data: Source, data_dir: str | Path | None = None) -> tuple[Path | None, list[str]]:
    """The first place that has the whole data set, and a line for each place before it that has not."""
    entry = data_set(data)
    if not entry.places:
        return Path(), []  # it comes with a package
    *named, cache = ([root / place for place in entry.places] for root in roots(data_dir))
    searched: list[str] = []
    for place in (*(place for places in named for place in places), *entry.system, *cache):
        lack = entry.lacks(place)
        if lack is None:
            return place, searched
        searched.append(f"{place}: {lack}")
    return None, searched


def roots(data_dir: str | Path | None = None) -> list[Path]:
    """The folders a user may have put data into, most explicit first; the cache is last."""
    named = [] if data_dir is None else [Path(data_dir)]
    if os.environ.get("ARTURO_DATA"):
        named.append(Path(os.environ["ARTURO_DATA"]))
    return [*named, cache_dir()]


def cache_dir() -> Path:
    """Where downloads go by default: ``$XDG_CACHE_HOME/arturo``, by default ``~/.cache/arturo``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arturo"


def fetch(
    data: Source,
    data_dir: str | Path | None = None,
    mirror: str | None = None,
    on_progress: Callable[[RemoteFile, int], None] = lambda file, done: None,
) -> Path:
    """Download a data set unless it exists, and return its place.

    There is ``data_dir``; without one it may be anywhere that :func:`find` looks, and goes to ``$ARTURO_DATA``, else to
    :func:`cache_dir`. ``on_progress`` gets the file and the number of its bytes that have come.
    """
    entry = data_set(data)
    place = find(data)[0] if data_dir is None or not entry.places else _inside(Path(data_dir), entry)
    if place is not None:
        return place
    root = roots(data_dir)[0]
    for file in entry.files:
        download(file, root / entry.fetched_to, mirror, lambda done, file=file: on_progress(file, done))  # type: ignore[misc]
    place = _inside(root, entry)
    if place is None:
        raise DataNotFound(f"{entry.title} was downloaded to {root} but is not found there")
    return place


def _inside(root: Path, entry: DataSet) -> Path | None:
    return next((root / place for place in entry.places if entry.lacks(root / place) is None), None)
