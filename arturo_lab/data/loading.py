"""Real image data sets as tensors in memory.

Images stay uint8 (N, C, H, W), a quarter of the float32 size; :mod:`arturo_lab.data.augment` turns one batch at a
time into what a network takes. Sources, in this order: the folder given, ``$ARTURO_DATA``, what a package
installed, the user's cache.
Nothing is downloaded unless asked for: :func:`fetch`, the command ``arturo fetch``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from arturo_lab.data.download import RemoteFile, download
from arturo_lab.data.folds import Fold
from arturo_lab.data.sources import DATA, DataSet
from arturo_lab.errors import ConfigError, DataNotFound


@dataclass(frozen=True)
class ImageData:
    """A labelled image data set with its fixed train/test split."""

    name: str
    train_images: Tensor  # uint8 (N, C, H, W)
    train_labels: Tensor  # int64 (N,)
    test_images: Tensor
    test_labels: Tensor
    num_classes: int

    def subset(self, n: int | None) -> ImageData:
        """The first ``n`` training images of one fixed shuffled order, with the whole test set. None: all of them.

        The order does not depend on any seed: every run sees the same ``n`` images, and a smaller subset lies inside a
        larger one. Classes are as balanced as chance makes them.
        """
        if n is None:
            return self
        if not 1 <= n <= len(self.train_labels):
            raise ConfigError(f"subset: {self.name} has {len(self.train_labels)} training images, got {n}")
        # NumPy guarantees the legacy RandomState stream for good.
        chosen = torch.from_numpy(np.random.RandomState(0).permutation(len(self.train_labels))[:n])
        return replace(self, train_images=self.train_images[chosen], train_labels=self.train_labels[chosen])

    def fold(self, name: str | None) -> ImageData:
        """Cross-validation: ``"2/8"`` holds out the second of eight parts of the training images and tests on it.

        The test images are not in what it returns: nothing that is chosen by its numbers can have seen them. None: as it is.
        """
        if name is None:
            return self
        out = Fold.parse(name).held_out(self.train_labels)
        images, labels = self.train_images, self.train_labels
        return replace(
            self, train_images=images[~out], train_labels=labels[~out], test_images=images[out], test_labels=labels[out]
        )

    def to(self, device: torch.device | str) -> ImageData:
        """The same on another device."""
        tensors = ("train_images", "train_labels", "test_images", "test_labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def load(name: str, data_dir: str | Path | None = None) -> ImageData:
    """Load a data set by name.

    Args:
        name: one of ``DATA``: ``"digits"``, ``"fashion-mnist"``, ``"cifar10"``, ``"cifar100"``.
        data_dir: folder searched first; ``digits`` needs none.

    Raises:
        ConfigError: unknown name.
        DataError: a file whose content is not what it should be.
        DataNotFound: the files are nowhere; the message lists the places searched.
    """
    entry = DATA[name]
    if data_dir is not None and entry.places and not Path(data_dir).is_dir():
        raise ConfigError(f"data-dir: {data_dir} is {'not a folder' if Path(data_dir).exists() else 'not there'}")
    place, searched = find(name, data_dir)
    if place is None:
        raise DataNotFound(
            f"{entry.title} not found. Looked in\n"
            + "\n".join(f"  {line}" for line in searched)
            + f"\nTo get it:\n  arturo fetch {name}\n  arturo fetch {name} --mirror URL\n"
            + (f"  {entry.also}\n" if entry.also else "")
            + "or name the folder that has it with --data-dir or ARTURO_DATA."
        )
    train_images, train_labels, test_images, test_labels = entry.read(place)
    return ImageData(
        name=name,
        train_images=torch.from_numpy(train_images),
        train_labels=torch.from_numpy(train_labels.astype(np.int64)),
        test_images=torch.from_numpy(test_images),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        num_classes=entry.num_classes,
    )


def find(name: str, data_dir: str | Path | None = None) -> tuple[Path | None, list[str]]:
    """The first place that has the whole data set, and a line for each place before it that has not."""
    entry = DATA[name]
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
    """Where downloads go unless told: ``$XDG_CACHE_HOME/arturo``, by default ``~/.cache/arturo``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arturo"


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    mirror: str | None = None,
    on_progress: Callable[[RemoteFile, int], None] = lambda file, done: None,
) -> Path:
    """Download a data set and return its place, unless it is there already.

    There is ``data_dir``; without one it may be anywhere that :func:`find` looks, and goes to ``$ARTURO_DATA``, else to
    :func:`cache_dir`. ``on_progress`` gets the file and the number of its bytes that have come.
    """
    entry = DATA[name]
    place = find(name)[0] if data_dir is None or not entry.places else _inside(Path(data_dir), entry)
    if place is not None:
        return place
    root = roots(data_dir)[0]
    for file in entry.files:
        download(file, root / entry.fetched_to, mirror, lambda done, file=file: on_progress(file, done))  # type: ignore[misc]
    place = _inside(root, entry)
    if place is None:
        raise DataNotFound(f"{entry.title} was downloaded to {root} and is not found there")
    return place


def _inside(root: Path, entry: DataSet) -> Path | None:
    return next((root / place for place in entry.places if entry.lacks(root / place) is None), None)
