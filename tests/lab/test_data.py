"""The data sets: files are believed only as far as their bytes go, and splits never move."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from arturo_lab.data import loading
from arturo_lab.data.sources import DATA, FASHION_MNIST_FILES
from arturo_lab.errors import ConfigError, DataError, DataNotFound


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


@pytest.mark.parametrize("gz", [False, True])
def test_idx_round_trip(nowhere: Path, fashion_mnist, gz: bool) -> None:
    fashion_mnist.write(nowhere, gz)
    loaded = loading.load("fashion-mnist", nowhere)
    assert loaded.name == "fashion-mnist" and loaded.num_classes == 10
    assert loaded.train_inputs.dtype == torch.uint8 and loaded.train_targets.dtype == torch.int64
    np.testing.assert_array_equal(loaded.train_inputs.numpy(), fashion_mnist.train_images[:, None])
    np.testing.assert_array_equal(loaded.train_targets.numpy(), fashion_mnist.train_labels)
    np.testing.assert_array_equal(loaded.test_inputs.numpy(), fashion_mnist.test_images[:, None])
    np.testing.assert_array_equal(loaded.test_targets.numpy(), fashion_mnist.test_labels)


@pytest.mark.parametrize("place", ["env", "env/fashion-mnist", "debian", "given/fashion-mnist"])
def test_places_searched(nowhere: Path, fashion_mnist, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("ARTURO_DATA", str(nowhere / "env"))
    (nowhere / "given").mkdir()
    fashion_mnist.write(nowhere / place)
    assert len(loading.load("fashion-mnist", str(nowhere / "given")).train_targets) == 7


def test_data_dir_comes_first(nowhere: Path, fashion_mnist) -> None:
    fashion_mnist.write(nowhere / "debian")
    fashion_mnist.write(nowhere / "given")
    (nowhere / "given" / FASHION_MNIST_FILES[3]).write_bytes(idx_bytes(np.array([9, 9, 9], dtype=np.uint8)))
    assert loading.load("fashion-mnist", nowhere / "given").test_targets.tolist() == [9, 9, 9]


def test_missing_files_say_where_and_how(nowhere: Path, fashion_mnist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTURO_DATA", str(nowhere / "env"))
    fashion_mnist.write(nowhere / "given")
    (nowhere / "given" / FASHION_MNIST_FILES[2]).unlink()
    with pytest.raises(DataNotFound) as error:
        loading.load("fashion-mnist", nowhere / "given")
    message = str(error.value)
    for expected in ("given: lacks t10k-images-idx3-ubyte", "env/fashion-mnist", "debian"):
        assert expected in message
    assert "apt-get install dataset-fashion-mnist" in message


def test_a_folder_that_is_not_there_is_not_passed_over(nowhere: Path, fashion_mnist, monkeypatch: pytest.MonkeyPatch) -> None:
    fashion_mnist.write(nowhere / "elsewhere")
    monkeypatch.setenv("ARTURO_DATA", str(nowhere / "elsewhere"))
    with pytest.raises(ConfigError, match=r"^data-dir: .*/typo does not exist"):
        loading.load("fashion-mnist", nowhere / "typo")


def test_truncated_file_names_file_and_bytes(nowhere: Path, fashion_mnist) -> None:
    fashion_mnist.write(nowhere)
    path = nowhere / FASHION_MNIST_FILES[0]
    path.write_bytes(path.read_bytes()[:-100])
    expected = 16 + 7 * 28 * 28
    with pytest.raises(DataError, match=rf"train-images.*expected {expected} bytes.*found {expected - 100}"):
        loading.load("fashion-mnist", nowhere)


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
def test_corrupt_labels(nowhere: Path, fashion_mnist, content: bytes, message: str) -> None:
    fashion_mnist.write(nowhere)
    (nowhere / FASHION_MNIST_FILES[3]).write_bytes(content)
    with pytest.raises(DataError, match=rf"(?s)t10k-labels.*{message}"):
        loading.load("fashion-mnist", nowhere)


@pytest.mark.parametrize("damage", ["cut", "checksum", "not gzip"])
def test_corrupt_gzip(nowhere: Path, fashion_mnist, damage: str) -> None:
    fashion_mnist.write(nowhere, gz=True)
    path = nowhere / (FASHION_MNIST_FILES[0] + ".gz")
    raw = bytearray(path.read_bytes())
    if damage == "checksum":
        raw[-6] ^= 0xFF
    path.write_bytes({"cut": raw[: len(raw) // 2], "checksum": raw, "not gzip": b"hello"}[damage])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: truncated or corrupt gzip"):
        loading.load("fashion-mnist", nowhere)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar_folder(nowhere: Path, cifar, protocol: int) -> None:
    cifar.write(nowhere, protocol)
    check_cifar(cifar, nowhere)


def test_cifar_archive(nowhere: Path, cifar) -> None:
    cifar.write_archive(nowhere)
    check_cifar(cifar, nowhere)


def check_cifar(cifar, folder: Path) -> None:
    name = cifar.folder.removesuffix("-batches-py").removesuffix("-python").replace("-", "")
    loaded = loading.load(name, folder)
    *train, test = cifar.batches.values()
    assert loaded.num_classes == int(name.removeprefix("cifar"))
    assert loaded.train_inputs.dtype == torch.uint8 and loaded.train_targets.dtype == torch.int64
    rows = np.concatenate([batch[b"data"] for batch in train])
    assert loaded.train_inputs.shape == (len(rows), 3, 32, 32)
    # a row is the red plane, then green, then blue, each line by line
    assert loaded.train_inputs[1, 2, 3, 4] == rows[1, 2 * 1024 + 3 * 32 + 4]
    np.testing.assert_array_equal(loaded.train_inputs.flatten(1).numpy(), rows)
    assert loaded.train_targets.tolist() == [label for batch in train for label in batch[cifar.labels_key]]
    np.testing.assert_array_equal(loaded.test_inputs.flatten(1).numpy(), test[b"data"])
    assert loaded.test_targets.tolist() == test[cifar.labels_key]


def test_cifar_as_python_2_wrote_it(nowhere: Path, cifar10) -> None:
    """The official files are pickles of Python 2: byte strings everywhere, NumPy's old module names."""
    folder = cifar10.write(nowhere)
    batch = cifar10.batches["test_batch"]
    text = lambda raw: b"U" + bytes([len(raw)]) + raw  # noqa: E731  SHORT_BINSTRING
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"  # empty, of the kind b
        b"(K\x01(K\x04M\x00\x0ct"  # version 1, shape (4, 3072)
        b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + (4 * 3072).to_bytes(4, "little") + batch[b"data"].tobytes() + b"tb"  # not Fortran, the bytes
    )
    labels = b"(" + b"".join(b"K" + bytes([label]) for label in batch[b"labels"]) + b"l"
    (folder / "test_batch").write_bytes(b"\x80\x02(" + text(b"data") + array + text(b"labels") + labels + b"d.")
    check_cifar(cifar10, nowhere)


def test_cifar_prefers_the_folder_and_takes_the_archive_if_the_folder_is_incomplete(nowhere: Path, cifar10) -> None:
    archive = cifar10.write_archive(nowhere)
    assert loading.find("cifar10", nowhere)[0] == archive
    folder = cifar10.write(nowhere)
    assert loading.find("cifar10", nowhere)[0] == folder
    (folder / "data_batch_3").unlink()
    place, searched = loading.find("cifar10", nowhere)
    assert place == archive and searched == [f"{folder}: lacks data_batch_3"]
    assert loading.find("cifar10", archive)[0] == archive  # named directly
    check_cifar(cifar10, nowhere)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100"])
def test_missing_data_names_the_commands_and_the_cache(nowhere: Path, name: str) -> None:
    with pytest.raises(DataNotFound) as error:
        loading.load(name)
    assert f"  arturo fetch {name}\n" in str(error.value) and "--mirror" in str(error.value)
    assert str(nowhere / "cache" / "arturo") in str(error.value)


class Exploit:
    def __init__(self, call, *arguments) -> None:
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"labels": [0] * 4}), "lacks 'data', has 'labels'"),
        (pickle.dumps([1, 2]), "expected a dict, found list"),
        (pickle.dumps({b"data": [1], b"labels": [1]}), r"'data' must be uint8 \(N, 3072\), found list"),
        (pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}), r"found float64 \(1, 3072\)"),
        (pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}), r"found uint8 \(1, 3071\)"),
        (pickle.dumps({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}), r"found uint8 \(0, 3072\)"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}), r"must be 1 integers, found int64 \(2,\)"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [0.5]}), "must be 1 integers, found float64"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}), "label 10 is out of range 0..9"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}), "label -1 is out of range"),
        (b"", "truncated or corrupt pickle"),
        (b"\x80\x02garbage", "truncated or corrupt pickle"),
        (pickle.dumps(Exploit(eval, "1 + 1")), r"refused: the pickle asks for builtins\.eval, which is not data"),
        (pickle.dumps(Exploit(np.load, "x.npy")), r"refused: the pickle asks for numpy\.load"),
        (b"cos\nsystem\n(S'true'\ntR.", r"refused: the pickle asks for os\.system"),
        (b"cnumpy\nndarray\n((I99999999999\nttR.", "truncated or corrupt pickle"),  # a terabyte of nothing
    ],
)
def test_corrupt_or_hostile_batch(nowhere: Path, cifar10, content: bytes, message: str) -> None:
    folder = cifar10.write(nowhere)
    (folder / "data_batch_4").write_bytes(content)
    with pytest.raises(DataError, match=rf"cifar-10-batches-py/data_batch_4: .*{message}"):
        loading.load("cifar10", nowhere)


def test_truncated_batch(nowhere: Path, cifar10) -> None:
    path = cifar10.write(nowhere) / "test_batch"
    raw = path.read_bytes()
    for length in range(0, len(raw), 997):
        path.write_bytes(raw[:length])
        with pytest.raises(DataError, match="test_batch: truncated or corrupt pickle"):
            loading.load("cifar10", nowhere)


@pytest.mark.parametrize("damage", ["cut", "flip", "not an archive"])
def test_corrupt_archive(nowhere: Path, cifar10, damage: str) -> None:
    archive = cifar10.write_archive(nowhere)
    raw = bytearray(archive.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 0x10  # noise hardly compresses: one pixel changes, and only the checksum knows
    archive.write_bytes({"cut": raw[: len(raw) // 2], "flip": raw, "not an archive": b"<html>moved</html>"}[damage])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: truncated or corrupt archive"):
        loading.load("cifar10", nowhere)


def test_archive_without_a_batch(nowhere: Path, cifar10) -> None:
    cifar10.write_archive(nowhere, leave_out="data_batch_2")
    with pytest.raises(DataError, match=r"lacks cifar-10-batches-py/data_batch_2"):
        loading.load("cifar10", nowhere)


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"^data: unknown name 'cifar-10'; did you mean cifar10"):
        loading.load("cifar-10")


def test_subset_is_fixed_nested_and_keeps_the_test_set() -> None:
    digits = loading.load("digits")
    small, large = digits.subset(100), digits.subset(300)
    assert torch.equal(large.train_inputs[:100], small.train_inputs) and torch.equal(small.test_inputs, digits.test_inputs)
    assert small.train_targets[:10].tolist() == [3, 8, 4, 8, 7, 5, 5, 2, 9, 7]  # pinned: stored results depend on it
    assert digits.subset(None) is digits
    everything = digits.subset(1437)
    assert sorted(everything.train_targets.tolist()) == sorted(digits.train_targets.tolist())
    for n in (0, -1, 1438):
        with pytest.raises(ConfigError, match=rf"^subset: digits has 1437 training examples, got {n}"):
            digits.subset(n)


def test_entries_know_their_size() -> None:
    assert DATA["digits"].examples == len(loading.load("digits").train_targets)


def test_digits_shapes_and_range() -> None:
    digits = loading.load("digits")
    assert digits.train_inputs.shape == (1437, 1, 8, 8) and digits.test_inputs.shape == (360, 1, 8, 8)
    assert digits.train_inputs.dtype == torch.uint8 and digits.train_targets.dtype == torch.int64
    assert digits.train_inputs.min() == 0 and digits.train_inputs.max() == 255
    counts = torch.bincount(digits.test_targets, minlength=10)
    assert counts.min() >= 35 and counts.max() <= 37  # a fifth of 174 to 183


def test_digits_split_is_deterministic_and_disjoint() -> None:
    first, second = loading.load("digits"), loading.load("digits")
    assert torch.equal(first.train_inputs, second.train_inputs) and torch.equal(first.test_targets, second.test_targets)
    # Pinned: a split that moves silently would make stored results incomparable.
    assert first.test_targets[:12].tolist() == [9, 2, 5, 7, 6, 9, 7, 3, 3, 3, 4, 6]
    together = torch.cat([first.train_inputs, first.test_inputs]).flatten(1)
    rows = {row.numpy().tobytes() for row in together}
    assert len(rows) == 1797  # all images of the data set differ, so none is on both sides and none is lost


# The real ones, where they are


REAL = {  # mean and standard deviation of the training pixels, by channel, in [0, 1]
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data(name: str) -> None:
    if loading.find(name)[0] is None:
        pytest.skip(f"{name} is not here")
    loaded = loading.load(name)
    assert len(loaded.train_targets) == DATA[name].examples and len(loaded.test_targets) == 10_000
    for labels in (loaded.train_targets, loaded.test_targets):
        counts = torch.bincount(labels)
        assert len(counts) == DATA[name].num_classes and counts.unique().numel() == 1  # balanced
    for channel, (mean, std) in enumerate(zip(*REAL[name], strict=True)):
        pixels = loaded.train_inputs[:, channel].float() / 255
        assert pixels.mean().item() == pytest.approx(mean, abs=2e-4) and pixels.std().item() == pytest.approx(std, abs=2e-4)
