"""The data sets: IDX files are believed only as far as their bytes go, and splits never move."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from arturo.lab import data

RNG = np.random.default_rng(0)
TRAIN_IMAGES = RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8)
TRAIN_LABELS = RNG.integers(0, 10, 7, dtype=np.uint8)
TEST_IMAGES = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
TEST_LABELS = RNG.integers(0, 10, 3, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def write_fashion_mnist(folder: Path, gz: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
    for name, array in zip(data.FASHION_MNIST_FILES, arrays, strict=True):
        raw = idx_bytes(array)
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(raw) if gz else raw)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Fashion-MNIST in the default places, whatever this machine has installed."""
    monkeypatch.delenv("ARTURO_DATA", raising=False)
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    return tmp_path


@pytest.mark.parametrize("gz", [False, True])
def test_idx_round_trip(nowhere: Path, gz: bool) -> None:
    write_fashion_mnist(nowhere, gz)
    loaded = data.load("fashion-mnist", nowhere)
    assert loaded.name == "fashion-mnist" and loaded.num_classes == 10
    assert loaded.train_images.dtype == torch.uint8 and loaded.train_labels.dtype == torch.int64
    np.testing.assert_array_equal(loaded.train_images.numpy(), TRAIN_IMAGES[:, None])
    np.testing.assert_array_equal(loaded.train_labels.numpy(), TRAIN_LABELS)
    np.testing.assert_array_equal(loaded.test_images.numpy(), TEST_IMAGES[:, None])
    np.testing.assert_array_equal(loaded.test_labels.numpy(), TEST_LABELS)


@pytest.mark.parametrize("place", ["env", "env/fashion-mnist", "debian", "given/fashion-mnist"])
def test_places_searched(nowhere: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("ARTURO_DATA", str(nowhere / "env"))
    write_fashion_mnist(nowhere / place)
    assert len(data.load("fashion-mnist", str(nowhere / "given")).train_labels) == 7


def test_data_dir_comes_first(nowhere: Path) -> None:
    write_fashion_mnist(nowhere / "debian")
    write_fashion_mnist(nowhere / "given")
    (nowhere / "given" / data.FASHION_MNIST_FILES[3]).write_bytes(idx_bytes(np.array([9, 9, 9], dtype=np.uint8)))
    assert data.load("fashion-mnist", nowhere / "given").test_labels.tolist() == [9, 9, 9]


def test_missing_files_say_where_and_how(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTURO_DATA", str(nowhere / "env"))
    write_fashion_mnist(nowhere / "given")
    (nowhere / "given" / data.FASHION_MNIST_FILES[2]).unlink()
    with pytest.raises(FileNotFoundError) as error:
        data.load("fashion-mnist", nowhere / "given")
    message = str(error.value)
    for expected in ("given: lacks t10k-images-idx3-ubyte", "env/fashion-mnist", "debian"):
        assert expected in message
    assert "apt-get install dataset-fashion-mnist" in message


def test_truncated_file_names_file_and_bytes(nowhere: Path) -> None:
    write_fashion_mnist(nowhere)
    path = nowhere / data.FASHION_MNIST_FILES[0]
    path.write_bytes(path.read_bytes()[:-100])
    expected = 16 + 7 * 28 * 28
    with pytest.raises(ValueError, match=rf"train-images.*expected {expected} bytes.*found {expected - 100}"):
        data.load("fashion-mnist", nowhere)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x00\x08\x03" + b"\x00" * 12, "magic number 0x00000801, found 0x00000803"),
        (b"", "magic number"),
        (b"\x00\x00\x08\x01\x00", "header takes 8 bytes, found 5"),
        (b"\x00\x00\x08\x01\xff\xff\xff\xff", "expected 4294967303 bytes"),
        (idx_bytes(np.zeros(2, np.uint8)), "2 labels for the 3 images"),
        (idx_bytes(np.full(3, 10, np.uint8)), "label 10 is out of range"),
        (idx_bytes(np.zeros(3, np.uint8)) + b"\x00", "expected 11 bytes.*found 12"),
    ],
)
def test_corrupt_labels(nowhere: Path, content: bytes, message: str) -> None:
    write_fashion_mnist(nowhere)
    (nowhere / data.FASHION_MNIST_FILES[3]).write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s)t10k-labels.*{message}"):
        data.load("fashion-mnist", nowhere)


@pytest.mark.parametrize("damage", ["cut", "checksum", "not gzip"])
def test_corrupt_gzip(nowhere: Path, damage: str) -> None:
    write_fashion_mnist(nowhere, gz=True)
    path = nowhere / (data.FASHION_MNIST_FILES[0] + ".gz")
    raw = bytearray(path.read_bytes())
    if damage == "checksum":
        raw[-6] ^= 0xFF
    path.write_bytes({"cut": raw[: len(raw) // 2], "checksum": raw, "not gzip": b"hello"}[damage])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz: truncated or corrupt gzip"):
        data.load("fashion-mnist", nowhere)


def test_unknown_name_lists_known() -> None:
    with pytest.raises(ValueError, match=r"'mnist'; known: digits, fashion-mnist"):
        data.load("mnist")


def test_digits_shapes_and_range() -> None:
    digits = data.load("digits")
    assert digits.train_images.shape == (1437, 1, 8, 8) and digits.test_images.shape == (360, 1, 8, 8)
    assert digits.train_images.dtype == torch.uint8 and digits.train_labels.dtype == torch.int64
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    counts = torch.bincount(digits.test_labels, minlength=10)
    assert counts.min() >= 35 and counts.max() <= 37  # a fifth of 174 to 183


def test_digits_split_is_deterministic_and_disjoint() -> None:
    first, second = data.load("digits"), data.load("digits")
    assert torch.equal(first.train_images, second.train_images) and torch.equal(first.test_labels, second.test_labels)
    # Pinned: a split that moves silently would make stored results incomparable.
    assert first.test_labels[:12].tolist() == [9, 2, 5, 7, 6, 9, 7, 3, 3, 3, 4, 6]
    together = torch.cat([first.train_images, first.test_images]).flatten(1)
    rows = {row.numpy().tobytes() for row in together}
    assert len(rows) == 1797  # all images of the data set differ, so none is on both sides and none is lost
