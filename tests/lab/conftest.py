"""Data sets in small, and a machine on which none is installed."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arturo.lab.datasets import DATA, FASHION_MNIST_FILES


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data set in the default places, whatever this machine has installed: ``debian`` and ``cache`` are here."""
    monkeypatch.delenv("ARTURO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(DATA, "fashion-mnist", replace(DATA["fashion-mnist"], system=(tmp_path / "debian",)))
    return tmp_path


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


class SmallFashionMnist:
    """7 training and 3 test images of noise."""

    rng = np.random.default_rng(0)
    train_images = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8)
    train_labels = rng.integers(0, 10, 7, dtype=np.uint8)
    test_images = rng.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    test_labels = rng.integers(0, 10, 3, dtype=np.uint8)

    def write(self, folder: Path, gz: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        arrays = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        for name, array in zip(FASHION_MNIST_FILES, arrays, strict=True):
            raw = idx_bytes(array)
            (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(raw) if gz else raw)


class SmallCifar:
    """Batches of 4 images of noise, as their authors pickle them."""

    def __init__(self, classes: int) -> None:
        rng = np.random.default_rng(classes)
        names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if classes == 10 else ["train", "test"]
        self.folder = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"
        self.archive = "cifar-10-python.tar.gz" if classes == 10 else "cifar-100-python.tar.gz"
        self.labels_key = b"labels" if classes == 10 else b"fine_labels"
        self.batches = {
            name: {
                b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8),
                self.labels_key: rng.integers(0, classes, 4).tolist(),
            }
            for name in names
        }

    def write(self, root: Path, protocol: int = 2) -> Path:
        folder = root / self.folder
        folder.mkdir(parents=True)
        for name, batch in self.batches.items():
            (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        return folder

    def write_archive(self, root: Path, leave_out: str = "") -> Path:
        root.mkdir(parents=True, exist_ok=True)
        with tarfile.open(root / self.archive, "w:gz") as tar:
            for name, batch in self.batches.items():
                raw = pickle.dumps(batch, protocol=2)
                member = tarfile.TarInfo(f"{self.folder}/{name}")
                member.size = len(raw)
                if name != leave_out:
                    tar.addfile(member, io.BytesIO(raw))
        return root / self.archive


@pytest.fixture
def fashion_mnist() -> SmallFashionMnist:
    return SmallFashionMnist()


@pytest.fixture(params=[10, 100])
def cifar(request: pytest.FixtureRequest) -> SmallCifar:
    return SmallCifar(request.param)


@pytest.fixture
def cifar10() -> SmallCifar:
    return SmallCifar(10)
