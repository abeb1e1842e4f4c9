"""Config files: what `arturo train --config` takes from one, and what it says to a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arturo_lab import cli
from arturo_lab.optimizers.config_file import ConfigFile, read_config_file, write_config_file
from arturo_lab.runs.collection import read_runs

FOUND = ConfigFile(
    "sgd", "digits-mlp", epochs=2, batch_size=48, subset=96, settings={"lr": 0.25, "momentum": 0.5}, search={"trials": 3}
)


def trained(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The config of the run it makes."""
    file = tmp_path / "found.json"
    write_config_file(file, FOUND)
    assert cli.main(["train", *arguments, "--config", str(file), "--out", str(tmp_path / "runs")]) == 0
    (record,), _ = read_runs(tmp_path / "runs")
    return record.config


def test_same_before_and_after(tmp_path: Path) -> None:
    write_config_file(tmp_path / "deep" / "found.json", FOUND)
    assert read_config_file(tmp_path / "deep" / "found.json") == FOUND


def test_train_takes_all_of_it(tmp_path: Path) -> None:
    config = trained(tmp_path, "digits-mlp")
    assert {key: config[key] for key in ("optimizer", "epochs", "batch_size", "subset", "seed")} == {
        "optimizer": "sgd",
        "epochs": 2,
        "batch_size": 48,
        "subset": 96,
        "seed": 0,
    }
    assert config["settings"]["lr"] == 0.25 and config["settings"]["momentum"] == 0.5 and config["settings"]["dampening"] == 0


def test_options_go_before_it(tmp_path: Path) -> None:
    options = "--epochs 1 --subset 64 --batch-size 32 --seed 4 --optimizer sgd --set lr=0.125"
    config = trained(tmp_path, "digits-mlp", *options.split())
    assert [config[key] for key in ("epochs", "subset", "batch_size", "seed")] == [1, 64, 32, 4]
    assert config["settings"]["lr"] == 0.125 and config["settings"]["momentum"] == 0.5


def test_another_task_takes_the_values_alone(tmp_path: Path) -> None:
    config = trained(tmp_path, "digits-cnn", "--epochs", "1", "--subset", "32")
    assert config["settings"]["lr"] == 0.25 and config["batch_size"] == 32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"optimizer": "sgd", "setings": {}}', "unknown name 'setings'; did you mean settings?"),
        ('{"settings": {}}', 'must be an object with an "optimizer"'),
        ("[1]", 'must be an object with an "optimizer"'),
        ("{", "cannot read"),
        ('{"optimizer": "sgd", "settings": 3}', "settings of"),
        ('{"optimizer": "sgd", "settings": {"lrr": 1}}', "set: unknown name 'lrr'; did you mean lr?"),
        ('{"optimizer": "adam"}', "is for adam, got sgd; drop one of the two"),
        ('{"optimizer": "sgd", "task": "digits-mlp", "subset": 5000}', "subset: digits-mlp has 1437 training examples"),
    ],
)
def test_mistakes(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text(content)
    command = [
        "train",
        "digits-mlp",
        "--optimizer",
        "sgd",
        "--config",
        str(tmp_path / "bad.json"),
        "--out",
        str(tmp_path / "runs"),
    ]
    assert cli.main(command) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not (tmp_path / "runs").exists()


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "digits-mlp", "--config", str(tmp_path / "none.json")]) == 2
    assert "config: cannot read" in capsys.readouterr().err


def test_written_without_what_is_none(tmp_path: Path) -> None:
    write_config_file(tmp_path / "found.json", ConfigFile("sgd", settings={"lr": 0.1}))
    assert json.loads((tmp_path / "found.json").read_text()) == {"optimizer": "sgd", "settings": {"lr": 0.1}, "search": {}}
