"""The paper's artefacts that need no training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.paper import published
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.drawn import layers_of
from arturo_lab.paper.hyperparameters import hyperparameters
from arturo_lab.tasks.catalog import TASKS


def test_our_values_are_the_papers_but_for_the_start() -> None:
    """Each printed number, to its six decimals; only our exact form derives its start."""
    table = hyperparameters().table
    assert len(table.rows) == 3 + 4 + 4 + 2 * (5 + 4)
    differing = {(row[0].text, row[1].text) for row in table.rows if any(cell.detail for cell in row)}
    assert differing == {("arTuRO", "initial_variance"), ("arTuRO", "initial_filter_variance")}
    record = next(r for r in table.records() if (r["optimizer"], r["value"]) == ("arTuRO (paper)", "kl_bound"))
    assert record["cifar10-resnet34"] == pytest.approx(0.00713292) and record["cifar10-resnet34_paper"] == 0.007133


@pytest.mark.parametrize(("task", "weights"), [("fmnist-cnn", 390_410), ("cifar10-cnn", 653_386), ("cifar100-cnn", 676_516)])
def test_layers_are_those_of_the_network(task: str, weights: int) -> None:
    layers = layers_of(task)
    assert sum(n for _, _, n in layers) == weights == sum(p.numel() for p in TASKS[task].model().parameters())
    assert layers[0][0].startswith("Conv2d 3x3") and layers[-1][1] == (100 if task == "cifar100-cnn" else 10,)


def test_every_network_of_the_paper_is_counted() -> None:
    (note,) = ARTEFACTS["architectures"].make().table.notes
    assert all(TASKS[task].title in note for task in published.TASKS) and "CIFAR-10, ResNet-34 21,289,802" in note


@pytest.mark.parametrize("name", ["figure1", "hyperparameters", "architectures", "graphical-model"])
def test_made_without_training(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", name, "--out", str(tmp_path)]) == 0
    text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert text.endswith(f"Made by `arturo reproduce {name}`.\n") and str(tmp_path) not in text
    assert json.loads((tmp_path / f"{name}.json").read_text())["rows"]
    assert (tmp_path / f"{name}.png").exists() == (name != "hyperparameters")
    assert not list(tmp_path.glob("*/")) and f"{tmp_path}/{name}.md" in capsys.readouterr().out
