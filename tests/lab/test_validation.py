"""``--validation k/K``: curves on a part that is held out, and one look at the test set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arturo_lab import cli
from arturo_lab.data import loading
from arturo_lab.errors import ConfigError
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import read_run
from arturo_lab.runs.run import open_run
from arturo_lab.training import train as training
from arturo_lab.training.train import train


def config(**options: object) -> RunConfig:
    return RunConfig.for_task("digits-mlp", "sgd", epochs=2, **options)  # type: ignore[arg-type]


def test_trains_and_measures_as_the_fold_does() -> None:
    data = loading.load("digits")
    folded, validated = (train(config(**{key: "1/6"}), data) for key in ("fold", "validation"))
    assert [m.test_loss for m in folded] == [m.test_loss for m in validated]
    assert config(validation="1/6").training_images == config(fold="1/6").training_images


@pytest.mark.parametrize("optimizer", ["sgd", "schedulefree-adamw"])
def test_the_test_set_is_looked_at_once(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = loading.load("digits"), []
    evaluate = training.evaluate

    def counting(model, inputs, targets, *more):
        seen.append(torch.equal(inputs, data.test_inputs))
        return evaluate(model, inputs, targets, *more)

    monkeypatch.setattr(training, "evaluate", counting)
    chosen = RunConfig.for_task("digits-mlp", optimizer, epochs=3, validation="1/6")
    with open_run(tmp_path, chosen) as run:
        history = train(chosen, data, run=run)
    assert seen == [False, False, False, True]
    record = read_run(tmp_path / chosen.folder)
    assert record.result["validation_loss"] == pytest.approx(history[-1].test_loss) == record.rows[-1]["test_loss"]
    assert record.result["test_loss"] != record.result["validation_loss"]
    assert record.result["metric"]["value"] == record.result["test_accuracy"]


def test_a_run_killed_before_its_test_is_tested_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, chosen = loading.load("digits"), config(validation="1/6")
    with open_run(tmp_path / "whole", chosen) as run:
        train(chosen, data, run=run)
    with monkeypatch.context() as patch, open_run(tmp_path / "killed", chosen) as run:
        patch.setattr(run, "finish", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(chosen, data, run=run)
    with open_run(tmp_path / "killed", chosen) as run:
        train(chosen, data, run=run)
    whole, killed = (
        json.loads((tmp_path / where / chosen.folder / "result.json").read_text()) for where in ("whole", "killed")
    )
    assert whole["test_loss"] == killed["test_loss"] and whole["test_accuracy"] == killed["test_accuracy"]


def test_a_diverged_run_has_no_test(tmp_path: Path) -> None:
    chosen = RunConfig.for_task("digits-mlp", "sgd", epochs=2, overrides={"lr": 1e30}, validation="1/6")
    with open_run(tmp_path, chosen) as run:
        train(chosen, loading.load("digits"), run=run)
    result = read_run(tmp_path / chosen.folder).result
    assert result["status"] == "diverged" and result["test_accuracy"] is None and result["metric"]["value"] is None


def test_examples_counted_for_settings_are_those_trained_on() -> None:
    whole, part = (RunConfig.for_task("digits-mlp", "ivon", validation=v).settings["ess"] for v in (None, "1/6"))
    assert (whole, part) == (1437, RunConfig.for_task("digits-mlp", "ivon", fold="1/6").settings["ess"])


@pytest.mark.parametrize("text", ["0/6", "7/6", "x"])
def test_bad_values_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^validation: must be k/K"):
        config(validation=text)


def test_not_beside_a_fold() -> None:
    with pytest.raises(ConfigError, match=r"^validation: a fold has no test"):
        config(validation="1/6", fold="1/6")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "digits-mlp", "--optimizers", "sgd", "adamw", "--seeds", "1", "--epochs", "1", "--validation", "1/6"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    assert "curves on part 1/6 of them, which is not trained on" in " ".join(capsys.readouterr().out.split())
