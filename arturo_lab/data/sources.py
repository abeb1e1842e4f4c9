"""The data sets: where each may lie, how it is read, where it is published. One entry of ``DATA`` each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arturo_lab.data.cifar import CIFAR10, CIFAR100, Arrays, CifarLayout, read_cifar
from arturo_lab.data.download import RemoteFile
from arturo_lab.data.idx import read_labelled
from arturo_lab.registry import Registry

FASHION_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class DataSet:
    """A data set in files. One without ``places`` comes with a package and is read from nowhere."""

    title: str
    num_classes: int
    train_images: int
    read: Callable[[Path], Arrays]
    places: tuple[str, ...] = ()  # relative to a folder the user names
    system: tuple[Path, ...] = ()  # folders that packages install
    lacks: Callable[[Path], str | None] = lambda place: None  # what keeps a place from being the data set
    files: tuple[RemoteFile, ...] = ()
    fetched_to: str = "."
    also: str = ""  # another way to get it


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


def _cifar(title: str, layout: CifarLayout, file: RemoteFile) -> DataSet:
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
        layout.num_classes,
        train_images=50_000,
        read=lambda place: read_cifar(place, layout),
        places=(layout.folder, layout.archive, "."),  # the folder first: it needs no decompression
        lacks=lacks,
        files=(file,),
    )


_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_TORONTO = "https://www.cs.toronto.edu/~kriz"

DATA: Registry[DataSet] = Registry(
    "data",
    {
        "digits": DataSet("8x8 digits", 10, train_images=1437, read=read_digits),
        "fashion-mnist": DataSet(
            "Fashion-MNIST",
            num_classes=10,
            train_images=60_000,
            read=read_fashion_mnist,
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
            RemoteFile(
                f"{_TORONTO}/cifar-10-python.tar.gz",
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        "cifar100": _cifar(
            "CIFAR-100",
            CIFAR100,
            RemoteFile(
                f"{_TORONTO}/cifar-100-python.tar.gz",
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    },
)
