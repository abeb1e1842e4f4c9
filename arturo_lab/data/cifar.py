"""CIFAR-10 and CIFAR-100 as their authors publish them: pickled batches in a folder or in a .tar.gz, read directly.

A pickle is a program, so these are not unpickled as Python would: nothing but dicts, lists, numbers, text and NumPy arrays
can come out, and anything else in the file is refused before it is called.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arturo_lab.errors import DataError

PIXELS = 3 * 32 * 32  # of an image, red plane first


@dataclass(frozen=True)
class CifarLayout:
    """What the files of one of the two are called."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    labels: str  # the key of the labels in a batch
    num_classes: int


CIFAR10 = CifarLayout(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    labels="labels",
    num_classes=10,
)
CIFAR100 = CifarLayout(
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test="test",
    labels="fine_labels",
    num_classes=100,
)

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # train images and labels, test images and labels


def read_cifar(place: Path, layout: CifarLayout) -> Arrays:
    """Read the folder or the archive ``place``: images uint8 (N, 3, 32, 32), labels int64 (N,)."""
    names = (*layout.train, layout.test)
    files = _archive_members(place, layout.folder, names) if place.is_file() else _folder_files(place, names)
    batches = [_read_batch(files[name], f"{place}/{name}", layout) for name in names]
    # concatenate also copies: an array from a pickle may be read-only
    train_images, train_labels = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    test_images, test_labels = (np.concatenate(parts) for parts in zip(*batches[-1:], strict=True))
    return train_images, train_labels, test_images, test_labels


def _folder_files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    try:
        return {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _archive_members(archive: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The named members of ``folder``. Nothing is written, so no member's path can lead anywhere."""
    wanted = {f"{folder}/{name}": name for name in names}
    members: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as unzipped:
            with tarfile.open(fileobj=unzipped, mode="r|") as tar:
                for member in tar:
                    name = wanted.get(member.name.removeprefix("./"))
                    if name is not None and member.isfile() and (content := tar.extractfile(member)) is not None:
                        members[name] = content.read()
            while unzipped.read(1 << 20):  # to its end, where gzip keeps the checksum
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive}: truncated or corrupt archive ({error})") from error
    missing = [name for name in names if name not in members]
    if missing:
        raise DataError(f"{archive}: lacks {folder}/{missing[0]}")
    return members


def _read_batch(raw: bytes, where: str, layout: CifarLayout) -> tuple[np.ndarray, np.ndarray]:
    batch = unpickle(raw, where)
    if not isinstance(batch, dict):
        raise DataError(f"{where}: expected a dict, found {type(batch).__name__}")
    values = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key in ("data", layout.labels):
        if key not in values:
            raise DataError(f"{where}: lacks {key!r}, has {', '.join(map(repr, values))}")

    images = values["data"]
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,) or not len(images):
        kind = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(f"{where}: 'data' must be uint8 (N, {PIXELS}), found {kind}")
    labels = np.asarray(values[layout.labels])
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise DataError(f"{where}: {layout.labels!r} must be {len(images)} integers, found {labels.dtype} {labels.shape}")
    if labels.min() < 0 or labels.max() >= layout.num_classes:
        wrong = labels[(labels < 0) | (labels >= layout.num_classes)][0]
        raise DataError(f"{where}: label {wrong} is out of range 0..{layout.num_classes - 1}")
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def unpickle(raw: bytes, where: str) -> Any:
    """Unpickle plain data and NumPy arrays; anything else is a :class:`DataError` that starts with ``where``.

    Example:
        >>> unpickle(pickle.dumps({b"labels": [1, 2]}), "batch")
        {b'labels': [1, 2]}
        >>> unpickle(pickle.dumps(eval), "batch")
        Traceback (most recent call last):
        ...
        arturo_lab.errors.DataError: batch: refused: the pickle asks for builtins.eval, which is not data
    """
    try:
        return _DataUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except _Refused as error:
        raise DataError(f"{where}: refused: the pickle asks for {error}, which is not data") from error
    except Exception as error:  # a corrupt pickle raises whatever its bytes happen to mean
        raise DataError(f"{where}: truncated or corrupt pickle ({type(error).__name__}: {error})") from error


class _Refused(pickle.UnpicklingError):
    pass


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        wanted = f"{module.replace('numpy._core.', 'numpy.core.')}.{name}"  # its name since NumPy 2, and before
        if wanted not in _ALLOWED:
            raise _Refused(wanted)
        return _ALLOWED[wanted]()


# What a pickled array asks for, and what it gets. Functions are made anew each time: a pickle can write to the attributes
# of what it is given.
_ALLOWED: dict[str, Callable[[], Any]] = {
    "numpy.ndarray": lambda: "ndarray",  # only ever an argument of _reconstruct
    "numpy.dtype": lambda: np.dtype,
    "numpy.core.multiarray._reconstruct": lambda: lambda kind, shape, dtype: np.ndarray(0, np.uint8),  # its state follows
    "numpy.core.numeric._frombuffer": lambda: lambda *arguments: _from_buffer(*arguments),  # protocol 5
    "_codecs.encode": lambda: lambda text, encoding: text.encode("latin-1"),  # bytes in an old pickle of Python 3
}


def _from_buffer(buffer: Any, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)
