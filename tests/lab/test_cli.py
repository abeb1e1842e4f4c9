"""The command: what it writes, and how it says no."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.data.download import RemoteFile, sha256
from arturo_lab.data.sources import DATA
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.tasks.catalog import TASKS


def test_list_names_everything_in_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    first_words = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert all(name in first_words for name in (*TASKS, *OPTIMIZERS, *DATA))
    assert "21,289,802" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare digit-mlp", "arturo: task: unknown name 'digit-mlp'; did you mean digits-mlp"),
        ("compare digits-mlp --optimizers sgd Adamm", "arturo: optimizer: unknown name 'Adamm'; did you mean adam or adamw"),
        ("compare digits-mlp --seeds 0", "arturo: seeds: must be at least 1, got 0"),
        ("compare digits-mlp --seeds 1,2,1", "arturo: seeds: 1 is named twice in 1, 2, 1"),
        ("compare digits-mlp --seeds 1,-2", "arturo: seeds: must be a count such as 3 or seeds such as 0,5,8, got '1,-2'"),
        ("compare digits-mlp --seeds many", "arturo: seeds: must be a count such as 3 or seeds such as 0,5,8, got 'many'"),
        ("compare digits-mlp digits-cnn digits-mlp", "arturo: task: digits-mlp is named twice"),
        ("compare digits-mlp --optimizers sgd sgd", "arturo: optimizers: sgd is named twice"),
        ("compare digits-mlp --jobs 0", "arturo: jobs: must be an integer >= 1, got 0"),
        ("compare digits-mlp --target 90", "arturo: target: must be above 0 and at most 1, such as 0.9, got 90"),
        ("compare digits-mlp --epochs 0", "arturo: epochs: must be an integer >= 1, got 0"),
        ("compare digits-mlp --subset 5000", "arturo: subset: digits-mlp has 1437 training examples, got 5000"),
        ("compare digits-mlp --set lr=0.1", "arturo: set: expected OPTIMIZER.name=value, got 'lr=0.1'"),
        ("compare digits-mlp --set sgdd.lr=0.1", "arturo: set: unknown name 'sgdd'; did you mean sgd"),
        (
            "train digits-mlp --set surrogate=hutchinson",
            "arturo: set surrogate: hutchinson takes more than a setting; choose the optimizer arturo-hutchinson",
        ),
        ("compare digits-mlp --set sgd.lrr=0.1", "arturo: set: unknown name 'lrr'; did you mean lr?"),
        ("compare digits-mlp --set sgd.lr=fast", "arturo: set lr: must be a number, got 'fast'"),
        ("compare digits-mlp --device cuda:77", "arturo: device: cuda:77 is not available here"),
        ("reproduce table2", "arturo: artefact: unknown name 'table2'; did you mean table1"),
        ("reproduce table1 --scale gpu", "arturo: scale: unknown name 'gpu'; did you mean cpu"),
        ("reproduce table1 --tasks fmnist-cn", "arturo: tasks: unknown name 'fmnist-cn'; did you mean fmnist-cnn"),
        ("reproduce table1 --tasks cifar10-cnn cifar10-cnn", "arturo: tasks: cifar10-cnn is named twice"),
        ("reproduce table1 --jobs -1", "arturo: jobs: must be an integer >= 1, got -1"),
        ("reproduce table1 --no-train", "arturo: runs/cpu: holds none of the 60 runs needed"),
        ("calibrate digits-mpl", "arturo: task: unknown name 'digits-mpl'; did you mean digits-mlp"),
        ("calibrate digits-mlp --methods pont", "arturo: methods: unknown name 'pont'; did you mean point"),
        ("calibrate digits-mlp --methods point point", "arturo: methods: point is named twice"),
        ("calibrate digits-mlp --methods dropout", "arturo: methods: dropout needs a network with dropout; that of digits-mlp"),
        ("calibrate digits-mlp --samples 0", "arturo: samples: must be an integer >= 1, got 0"),
        ("calibrate digits-mlp --ours sgd", "arturo: ours: must be one of arTuRO's entries of `arturo list`, got sgd"),
        ("calibrate digits-mlp --theirs sdg", "arturo: optimizer: unknown name 'sdg'; did you mean sgd"),
        ("calibrate digits-mlp --held-out 0", "arturo: held-out: must be an integer >= 1, got 0"),
        ("calibrate digits-mlp --subset 1437", "arturo: held-out: 1437 training images and 239 held out do not fit"),
        ("calibrate digits-mlp --test-images 361", "arturo: test-images: digits has 360, got 361"),
        ("train digits-mlp --epochs 0", "arturo: epochs: must be an integer >= 1, got 0"),
        ("train digits-mlp --optimizer artuto", "arturo: optimizer: unknown name 'artuto'; did you mean arturo"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_name_stops_before_the_first_run(tmp_path: Path) -> None:
    assert cli.main(["compare", "digits-mlp", "nonsense", "--out", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_missing_data_says_how_to_get_it(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "fmnist-cnn", "--data-dir", str(nowhere), "--out", str(nowhere)]) == 2
    err = capsys.readouterr().err
    assert "dataset-fashion-mnist" in err and "arturo fetch fashion-mnist" in err and f"{nowhere}/debian: no such folder" in err


def test_corrupt_data_is_no_traceback(nowhere: Path, fashion_mnist, capsys: pytest.CaptureFixture[str]) -> None:
    fashion_mnist.write(nowhere)
    (nowhere / "t10k-labels-idx1-ubyte").write_bytes(b"short")
    assert cli.main(["train", "fmnist-cnn", "--data-dir", str(nowhere), "--out", str(nowhere)]) == 2
    assert capsys.readouterr().err.startswith(f"arturo: {nowhere}/t10k-labels-idx1-ubyte: expected IDX magic number")


def test_list_shows_the_data_found(nowhere: Path, fashion_mnist, capsys: pytest.CaptureFixture[str]) -> None:
    fashion_mnist.write(nowhere)
    assert cli.main(["list", "--data-dir", str(nowhere)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert str(nowhere)[:20] in lines["fashion-mnist"]
    assert "not found: arturo fetch cifar100" in lines["cifar100"]


def test_fetch(nowhere: Path, monkeypatch: pytest.MonkeyPatch, cifar10, capsys: pytest.CaptureFixture[str]) -> None:
    archive = cifar10.write_archive(nowhere / "mirror")
    file = RemoteFile("https://official.invalid/" + archive.name, archive.stat().st_size, sha256(archive))
    monkeypatch.setitem(DATA, "cifar10", replace(DATA["cifar10"], files=(file,)))
    command = ["fetch", "cifar10", "--data-dir", str(nowhere / "mine"), "--mirror", (nowhere / "mirror").as_uri()]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == f"cifar10: downloaded to {nowhere}/mine/{archive.name}\n"
    assert cli.main(command) == 0
    assert capsys.readouterr().out == f"cifar10: is in {nowhere}/mine/{archive.name}\n"
    monkeypatch.setitem(DATA, "cifar10", replace(DATA["cifar10"], files=(replace(file, sha256="0" * 64),)))
    assert cli.main(["fetch", "cifar10", "--mirror", (nowhere / "mirror").as_uri()]) == 2
    assert "wrong checksum" in capsys.readouterr().err
    assert cli.main(["fetch", "cifar11"]) == 2
    assert capsys.readouterr().err.startswith("arturo: data: unknown name 'cifar11'; did you mean cifar10")


def test_python_dash_m_without_traceback() -> None:
    result = subprocess.run([sys.executable, "-m", "arturo_lab", "train", "nope"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("arturo: task: unknown name 'nope'") and "Traceback" not in result.stderr


def test_usage_errors_are_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["compare", "digits-mlp", "--jobs", "many"], "--jobs: must be an integer, got 'many'"),
        (["compare", "digits-mlp", "--job", "2", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["train"], "the following arguments are required: TASK"),
        (["train", "digits-mlp", "--seed"], "--seed: expected one argument"),
    ):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == f"arturo: {message}; `arturo {words[0]} --help` lists the options\n"
