"""The command: what it writes, and how it says no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from arturo.lab import cli, data


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


def test_train_prints_epochs_and_writes_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "digits-mlp", "--seed", "4", "--epochs", "2", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "digits-mlp/arturo-seed4/metrics.jsonl").read_text().splitlines()]
    assert [(row["optimizer"], row["seed"], row["epoch"]) for row in rows] == [("arturo", 4, 1), ("arturo", 4, 2)]
    assert f"{rows[1]['test_accuracy']:.2%}" in capsys.readouterr().out


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("digits-mlp", "digits-cnn", "fmnist-cnn", "sgd", "adam", "adamw", "arturo"))


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


def test_missing_data_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ARTURO_DATA", raising=False)
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "nowhere")
    assert cli.main(["train", "fmnist-cnn", "--data-dir", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "dataset-fashion-mnist" in capsys.readouterr().err


def test_python_dash_m_without_traceback() -> None:
    result = subprocess.run([sys.executable, "-m", "arturo.lab", "train", "nope"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("arturo: task: unknown name 'nope'") and "Traceback" not in result.stderr


def test_usage_error_is_argparse_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "digits-mlp", "--seeds", "many"])
    assert stop.value.code == 2 and "--seeds" in capsys.readouterr().err
