"""Real image data sets as tensors in memory.

Images stay uint8 (N, C, H, W), a quarter of the float32 size; the training loop converts one batch at a time. Nothing
here touches the network: ``digits`` comes with scikit-learn and Fashion-MNIST is read from its four official IDX files.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
FASHION_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_UINT8 = 0x08  # third byte of the magic number; the fourth is the number of dimensions


@dataclass(frozen=True)
class ImageData:
    """A labelled image data set with its fixed train/test split."""

    name: str
    train_images: Tensor  # uint8 (N, C, H, W)
    train_labels: Tensor  # int64 (N,)
    test_images: Tensor
    test_labels: Tensor
    num_classes: int


def load(name: str, data_dir: str | Path | None = None) -> ImageData:
    """Load a data set by name.

    Args:
        name: ``"digits"`` or ``"fashion-mnist"``.
        data_dir: folder searched first; ``digits`` needs none.

    Raises:
        ValueError: unknown name, or a file whose content is not what its header promises.
        FileNotFoundError: the files are nowhere; the message lists the places searched.
    """
    if name not in _LOADERS:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(sorted(_LOADERS))}")
    return _LOADERS[name](None if data_dir is None else Path(data_dir))


def _load_digits(data_dir: Path | None) -> ImageData:
    """1797 8x8 digits, split 1437/360 with the same share of every class on both sides."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("the digits data set comes with scikit-learn: pip install 'arturo[lab]'") from error

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    # Neighbouring images are by the same writer, so shuffle before splitting. NumPy guarantees the legacy RandomState
    # stream for good: the split is the same everywhere. Sorted by class, every fifth image is a stratified 20 %.
    order = np.random.RandomState(0).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[::5]] = True
    return ImageData(
        name="digits",
        train_images=torch.from_numpy(images[~is_test]),
        train_labels=torch.from_numpy(labels[~is_test]),
        test_images=torch.from_numpy(images[is_test]),
        test_labels=torch.from_numpy(labels[is_test]),
        num_classes=10,
    )


def _load_fashion_mnist(data_dir: Path | None) -> ImageData:
    """60,000 + 10,000 grey 28x28 images of clothes, from the four official IDX files."""
    files = _find_fashion_mnist(data_dir)
    train_images, train_labels = _read_labelled(files[0], files[1])
    test_images, test_labels = _read_labelled(files[2], files[3])
    return ImageData("fashion-mnist", train_images, train_labels, test_images, test_labels, num_classes=10)


_LOADERS: dict[str, Callable[[Path | None], ImageData]] = {
    "digits": _load_digits,
    "fashion-mnist": _load_fashion_mnist,
}


def _find_fashion_mnist(data_dir: Path | None) -> list[Path]:
    """The four files from the first folder that holds all of them, plain or gzipped."""
    roots = [data_dir] if data_dir is not None else []
    if os.environ.get("ARTURO_DATA"):
        roots.append(Path(os.environ["ARTURO_DATA"]))
    folders = [folder for root in roots for folder in (root, root / "fashion-mnist")] + [DEBIAN_FASHION_MNIST]

    searched = []
    for folder in folders:
        found = [_plain_or_gz(folder / name) for name in FASHION_MNIST_FILES]
        files = [path for path in found if path is not None]
        if len(files) == len(FASHION_MNIST_FILES):
            return files
        missing = [name for name, path in zip(FASHION_MNIST_FILES, found, strict=True) if path is None]
        searched.append(f"  {folder}: " + (f"lacks {', '.join(missing)}" if folder.is_dir() else "no such folder"))
    raise FileNotFoundError(
        "Fashion-MNIST not found. Looked for its four IDX files (plain or .gz) in\n"
        + "\n".join(searched)
        + "\nOn Debian and Ubuntu `apt-get install dataset-fashion-mnist` fetches it;"
        + " elsewhere put the files in a folder and set ARTURO_DATA to it."
    )


def _plain_or_gz(path: Path) -> Path | None:
    gz = path.with_name(path.name + ".gz")
    return path if path.is_file() else gz if gz.is_file() else None


def _read_labelled(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(images_path, dims=3), read_idx(labels_path, dims=1)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_path}: images are {images.shape[1]}x{images.shape[2]}, expected 28x28")
    if len(images) != len(labels):
        raise ValueError(f"{labels_path}: {len(labels)} labels for the {len(images)} images of {images_path.name}")
    if len(labels) and labels.max() > 9:
        raise ValueError(f"{labels_path}: label {int(labels.max())} is out of range 0..9")
    return torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64))


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read a uint8 IDX file, gzipped when its name ends in ``.gz``.

    Layout: magic number (0, 0, 8, dims), ``dims`` big-endian uint32 sizes, then the bytes in C order.

    Raises:
        ValueError: wrong magic number, or more or fewer bytes than the header promises.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: truncated or corrupt gzip file ({error})") from error
    magic = bytes((0, 0, _IDX_UINT8, dims))
    if raw[:4] != magic:
        raise ValueError(f"{path}: expected IDX magic number 0x{magic.hex()}, found 0x{raw[:4].hex()}")
    header = 4 + 4 * dims
    if len(raw) < header:
        raise ValueError(f"{path}: truncated: the header takes {header} bytes, found {len(raw)}")
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, header, 4))
    expected = header + int(np.prod(shape, dtype=object))  # Python integers: a corrupt header must not overflow
    if len(raw) != expected:
        raise ValueError(f"{path}: expected {expected} bytes for shape {shape}, found {len(raw)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy()
