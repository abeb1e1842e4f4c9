"""Data sets in small, a machine on which none is installed, and made-up run folders."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arturo_lab.data.sources import DATA, FASHION_MNIST_FILES
from arturo_lab.runs.config import FORMAT


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data set in the default places, whatever this machine has installed: ``debian`` and ``cache`` are here."""
    monkeypatch.delenv("ARTURO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(DATA, "fashion-mnist", replace(DATA["fashion-mnist"], system=(tmp_path / "debian",)))
    return tmp_path


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise passes for the published data sets."""
    for name in ("fashion-mnist", "cifar10", "cifar100"):
        monkeypatch.setitem(DATA, name, replace(DATA[name], digest=None))


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
def fashion_mnist(unchecked: None) -> SmallFashionMnist:
    return SmallFashionMnist()


@pytest.fixture(params=[10, 100])
def cifar(request: pytest.FixtureRequest, unchecked: None) -> SmallCifar:
    return SmallCifar(request.param)


@pytest.fixture
def cifar10(unchecked: None) -> SmallCifar:
    return SmallCifar(10)


# --- run folders


def write_run(root: Path, optimizer: str, seed: int, *, epochs: int = 8, final: float = 0.9, status: str = "finished",
              done: int | None = None, task: str = "digits-mlp", **config: object) -> Path:  # fmt: skip
    """A plausible run: accuracy climbs to ``final``, losses fall, arTuRO has eta and KL. ``done`` epochs are there."""
    values = {"format": FORMAT, "task": task, "optimizer": optimizer, "seed": seed, "epochs": epochs}
    values |= {"batch_size": 32, "subset": None}
    values |= {"settings": {"lr": 0.1}} | config
    key = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    folder = root / task / f"{optimizer}-seed{seed}-{key}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.13.0", "cpu": "a <fast> one"}))
    rows = []
    for epoch in range(1, (epochs if done is None else done) + 1):
        lost = status == "diverged" and epoch > 2
        row = {
            "epoch": epoch, "train_loss": None if lost else 2.0 * 0.6**epoch + 0.01 * seed,
            "test_loss": None if lost else 2.0 * 0.7**epoch, 
            "test_accuracy": 0.1 if lost else final * (1 - 0.5**epoch),
            "seconds": 1.0 + 0.1 * seed, "wall_seconds": epoch * (1.0 + 0.1 * seed), "seconds_data": 0.05,
            "seconds_forward": 0.3, "seconds_backward": 0.4, "seconds_optimizer": 0.2, "seconds_test": 0.1,
            "images_per_second": 1400.0, "kl_over_bound": 0.99 if optimizer == "arturo" else None,
            "eta": 0.5 * epoch if optimizer == "arturo" else None, "evaluations": None,
        }  # fmt: skip
        rows.append(row)
    if status == "finished":
        rows[-1]["test_accuracy"] = final
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status != "unfinished":
        last = {key: rows[-1][key] for key in ("test_accuracy", "test_loss", "train_loss")}
        result = {"status": status, **last, "epochs": len(rows), "seconds": rows[-1]["wall_seconds"]}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture(scope="session")
def make_run():
    """``make_run(root, optimizer, seed, ...)``, see :func:`write_run`."""
    return write_run
