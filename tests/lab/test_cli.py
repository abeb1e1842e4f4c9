"""The command: what it writes, and how it says no."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arturo.lab import cli
from arturo.lab.datasets import DATA
from arturo.lab.download import RemoteFile, sha256
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.tasks import TASKS


def test_compare_writes_table_figure_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "digits-mlp", "--optimizers", "adamw", "arturo", "--seeds", "2", "--epochs", "1"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    folder = tmp_path / "digits-mlp"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["optimizer"], row["seed"]) for row in rows] == [("adamw", 0), ("arturo", 0), ("adamw", 1), ("arturo", 1)]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["command"] == "arturo " + " ".join(command)
    mean = sum(row["test_accuracy"] for row in rows if row["optimizer"] == "arturo") / 2
    assert summary["optimizers"]["arturo"]["test_accuracy"]["mean"] == pytest.approx(mean)

    out = capsys.readouterr().out
    assert f"{100 * mean:.2f} ±" in out and str(folder / "figure.png") in out


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
        ("compare digits-mlp --seeds 0", "arturo: seeds: must be an integer >= 1, got 0"),
        ("train digits-mlp --epochs 0", "arturo: epochs: must be an integer >= 1, got 0"),
        ("train digits-mlp --optimizer artuto", "arturo: optimizer: unknown name 'artuto'; did you mean arturo"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1


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
    result = subprocess.run([sys.executable, "-m", "arturo.lab", "train", "nope"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("arturo: task: unknown name 'nope'") and "Traceback" not in result.stderr


def test_usage_error_is_argparse_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "digits-mlp", "--seeds", "many"])
    assert stop.value.code == 2 and "--seeds" in capsys.readouterr().err
