"""IDX, the file format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from arturo_lab.errors import DataError

_UINT8 = 0x08  # third byte of the magic number; the fourth is the number of dimensions


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read a uint8 IDX file, gzipped when its name ends in ``.gz``.

    Layout: magic number (0, 0, 8, dims), ``dims`` big-endian uint32 sizes, then the bytes in C order.

    Raises:
        DataError: wrong magic number, or more or fewer bytes than the header promises.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or corrupt gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    magic = bytes((0, 0, _UINT8, dims))
    if raw[:4] != magic:
        raise DataError(f"{path}: expected IDX magic number 0x{magic.hex()}, found 0x{raw[:4].hex()}")
    header = 4 + 4 * dims
    if len(raw) < header:
        raise DataError(f"{path}: truncated: the header takes {header} bytes, found {len(raw)}")
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, header, 4))
    expected = header + int(np.prod(shape, dtype=object))  # Python integers: a corrupt header must not overflow
    if len(raw) != expected:
        raise DataError(f"{path}: expected {expected} bytes for shape {shape}, found {len(raw)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy()


def read_labelled(images_path: Path, labels_path: Path, side: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, side, side) and their labels (N,), checked against each other."""
    images, labels = read_idx(images_path, dims=3), read_idx(labels_path, dims=1)
    if images.shape[1:] != (side, side):
        raise DataError(f"{images_path}: images are {images.shape[1]}x{images.shape[2]}, expected {side}x{side}")
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: {len(labels)} labels for the {len(images)} images of {images_path.name}")
    if len(labels) == 0:
        raise DataError(f"{labels_path}: no images")
    if labels.max() >= num_classes:
        raise DataError(f"{labels_path}: label {int(labels.max())} is out of range 0..{num_classes - 1}")
    return images, labels
