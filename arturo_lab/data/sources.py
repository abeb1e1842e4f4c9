"""The data sets: where each may be, how it is read, where it is published. One entry of ``DATA`` each.

A task may bring a data set that is not listed here: a :class:`DataSet`, or a function that returns its examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from arturo_lab.data import docstrings
from arturo_lab.data.cifar import CIFAR10, CIFAR100, Arrays, CifarLayout, read_cifar
from arturo_lab.data.download import RemoteFile
from arturo_lab.data.examples import Examples
from arturo_lab.data.idx import read_labelled
from arturo_lab.data.tables import read_noise, read_nothing, read_table
from arturo_lab.errors import DataError
from arturo_lab.registry import Registry

FASHION_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class DataSet:
    """A data set in files. One without ``places`` comes with a package and is read from nowhere.

    Args:
        title: its name in texts.
        read: its content at a place, as four arrays (images and labels to train on and to test on) or as examples.
        num_classes: None if the targets are no classes.
        examples: to train on; None: only its content tells.
        digest: of the content, see :attr:`arturo_lab.data.examples.Examples.digest`. Anything else is not this data set. None:
            whatever is read is it.
        places: where it may be, relative to a folder the user names.
        system: folders that packages install.
        lacks: what keeps a place from being the data set.
        files: what to download.
        fetched_to: where to, relative to a folder the user names.
        also: another way to get it.
        comes_with: the package that has it, if it has no ``places``.
    """

    title: str
    read: Callable[[Path], Arrays | Examples]
    num_classes: int | None = None
    examples: int | None = None
    digest: str | None = None
    places: tuple[str, ...] = ()
    system: tuple[Path, ...] = ()
    lacks: Callable[[Path], str | None] = lambda place: None
    files: tuple[RemoteFile, ...] = ()
    fetched_to: str = "."
    also: str = ""
    comes_with: str = "scikit-learn"


def read_digits(place: Path) -> Arrays:
    """1797 8x8 digits that come with scikit-learn, split 1437/360 with the same share of every class on both sides."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    # Neighbouring images are by the same writer, so shuffle before splitting. NumPy guarantees the legacy RandomState
    # stream for good: the split is the same everywhere. Sorted by class, every fifth image is a stratified 20 %.
    order = np.random.RandomState(0).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[::5]] = True
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


def read_fashion_mnist(folder: Path) -> Arrays:
    """60,000 + 10,000 grey 28x28 images of clothes, from the four official IDX files, plain or gzipped."""
    files = [_plain_or_gz(folder / name) for name in FASHION_MNIST_FILES]
    train_images, train_labels = read_labelled(files[0], files[1], side=28, num_classes=10)
    test_images, test_labels = read_labelled(files[2], files[3], side=28, num_classes=10)
    return train_images[:, None], train_labels, test_images[:, None], test_labels


def _fashion_mnist_lacks(folder: Path) -> str | None:
    if not folder.is_dir():
        return "no such folder"
    missing = [name for name in FASHION_MNIST_FILES if not _plain_or_gz(folder / name).is_file()]
    return f"lacks {', '.join(missing)}" if missing else None


def _plain_or_gz(path: Path) -> Path:
    return path if path.is_file() else path.with_name(path.name + ".gz")


def _cifar(title: str, layout: CifarLayout, digest: str, file: RemoteFile) -> DataSet:
    """50,000 + 10,000 colour 32x32 images, from the official folder or the official archive."""

    def lacks(place: Path) -> str | None:
        if place.is_file():
            return None
        if not place.is_dir():
            return "no such file" if place.name == layout.archive else "no such folder"
        missing = [part for part in (*layout.train, layout.test) if not (place / part).is_file()]
        return f"lacks {', '.join(missing)}" if missing else None

    return DataSet(
        title,
        lambda place: read_cifar(place, layout),
        layout.num_classes,
        examples=50_000,
        digest=digest,
        places=(layout.folder, layout.archive, "."),  # the folder first: it needs no decompression
        lacks=lacks,
        files=(file,),
    )


_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_TORONTO = "https://www.cs.toronto.edu/~kriz"

DATA: Registry[DataSet] = Registry(
    "data",
    {
        "digits": DataSet("8x8 digits", read_digits, num_classes=10, examples=1437),
        "fashion-mnist": DataSet(
            "Fashion-MNIST",
            read_fashion_mnist,
            num_classes=10,
            examples=60_000,
            digest="a0cb6092afcc3eaa",
            places=(".", "fashion-mnist", "FashionMNIST/raw"),  # the last is torchvision's
            system=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's
            lacks=_fashion_mnist_lacks,
            files=(
                RemoteFile(
                    f"{_ZALANDO}/train-images-idx3-ubyte.gz",
                    26_421_880,
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                RemoteFile(
                    f"{_ZALANDO}/train-labels-idx1-ubyte.gz",
                    29_515,
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                RemoteFile(
                    f"{_ZALANDO}/t10k-images-idx3-ubyte.gz",
                    4_422_102,
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                RemoteFile(
                    f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz",
                    5_148,
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            ),
            fetched_to="fashion-mnist",
            also="apt-get install dataset-fashion-mnist   (Debian, Ubuntu)",
        ),
        "cifar10": _cifar(
            "CIFAR-10",
            CIFAR10,
            "a55ad8162afef7e2",
            RemoteFile(
                f"{_TORONTO}/cifar-10-python.tar.gz",
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        "cifar100": _cifar(
            "CIFAR-100",
            CIFAR100,
            "0586525d44a91296",
            RemoteFile(
                f"{_TORONTO}/cifar-100-python.tar.gz",
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
        "breast-cancer": DataSet(
            "breast cancer", lambda place: read_table("breast_cancer", classes=2), num_classes=2, examples=456
        ),
        "diabetes": DataSet("diabetes", lambda place: read_table("diabetes"), examples=354),
        "docstrings": DataSet(
            "docstrings of Python's library, bytes", lambda place: docstrings.read_bytes(), comes_with="Python"
        ),
        "docstring-words": DataSet(
            "docstrings of Python's library, words", lambda place: docstrings.read_words(), comes_with="Python"
        ),
        "noise": DataSet("normal noise", lambda place: read_noise(), examples=10_000, comes_with="arturo"),
        "nothing": DataSet("nothing", lambda place: read_nothing(), examples=64, comes_with="arturo"),
    },
)


def first(name: str, train: int, test: int) -> DataSet:
    """The first images of a data set, as a data set: short trainings that a laptop manages."""
    whole = DATA[name]

    def read(place: Path) -> Examples:
        entry = DATA[name]
        examples = as_examples(f"{name}-{train}", entry, entry.read(place))
        check_digest(name, entry, examples, place)
        return replace(
            examples,
            train_inputs=examples.train_inputs[:train],
            train_targets=examples.train_targets[:train],
            test_inputs=examples.test_inputs[:test],
            test_targets=examples.test_targets[:test],
        )

    return replace(whole, title=f"{whole.title}, {train:,} images", read=read, examples=train, digest=None)


DATA["fashion-mnist-12000"] = first("fashion-mnist", train=12_000, test=5_000)
DATA["cifar10-10000"] = first("cifar10", train=10_000, test=5_000)
DATA["cifar100-10000"] = first("cifar100", train=10_000, test=5_000)


def data_set(data: str | DataSet | Callable[[], Examples]) -> DataSet:
    """What a task names or brings: an entry of ``DATA``, a data set, or a function that returns examples."""
    if isinstance(data, str):
        return DATA[data]
    return data if isinstance(data, DataSet) else _made_by(data)


@cache
def _made_by(function: Callable[[], Examples]) -> DataSet:
    return DataSet(name_of(function), lambda place: function(), comes_with="its task")


def name_of(data: str | DataSet | Callable[[], Examples]) -> str:
    """For messages and records."""
    if isinstance(data, str):
        return data
    return data.title if isinstance(data, DataSet) else getattr(data, "__name__", type(data).__name__)


def as_examples(name: str, entry: DataSet, content: Arrays | Examples) -> Examples:
    if isinstance(content, Examples):
        return content
    train_images, train_labels, test_images, test_labels = content
    return Examples(
        name,
        torch.from_numpy(train_images),
        torch.from_numpy(train_labels.astype(np.int64)),
        torch.from_numpy(test_images),
        torch.from_numpy(test_labels.astype(np.int64)),
        entry.num_classes,
    )


def check_digest(name: str, entry: DataSet, content: Examples, place: Path) -> None:
    """Images of the right shape under the right file names are not yet the data set."""
    if entry.digest is not None and content.digest != entry.digest:
        raise DataError(
            f"{place}: not {entry.title}: the content has the digest {content.digest}, the published one {entry.digest}; "
            f"get it with `arturo fetch {name}`, or give images of your own their own name (docs/extending.md)"
        )
