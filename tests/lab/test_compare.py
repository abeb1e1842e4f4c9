"""Comparisons: statistics by hand, files that other programs can read, divergence that does not end in a crash."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from torch.optim import SGD

from arturo.lab import data, report
from arturo.lab.compare import Comparison, Estimate, Run, compare, plan, progress_bar
from arturo.lab.config import RunConfig
from arturo.lab.epoch import EpochMetrics
from arturo.lab.errors import ConfigError
from arturo.lab.optimizers import OPTIMIZERS, OptimizerEntry


def made_up(accuracies: dict[str, list[float]]) -> Comparison:
    """Two epochs of which only the last counts."""
    runs = [
        Run(
            RunConfig.for_task("digits-mlp", name, seed, epochs=2),
            (EpochMetrics(1, 2.0, 1.0, 0.99, seconds=9), EpochMetrics(2, 1.0, 1 - value, value, seconds=1)),
        )
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    seeds = len(next(iter(accuracies.values())))
    return Comparison("digits-mlp", tuple(accuracies), seeds, epochs=2, runs=tuple(runs))


def text(comparison: Comparison) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.table(comparison))
    return console.export_text()


def test_estimate_is_mean_and_doubled_standard_error() -> None:
    # deviations -2, 0, 2: sample variance 4, standard error 2 / sqrt(3)
    estimate = Estimate.of([1.0, 3.0, 5.0])
    assert estimate.mean == 3.0
    assert estimate.doubled_error == pytest.approx(4 / math.sqrt(3))
    assert Estimate.of([1.5]) == Estimate(1.5, None)


def test_final_is_the_last_epoch_not_the_best() -> None:
    comparison = made_up({"sgd": [0.5, 0.7], "adam": [0.8, 0.8]})
    assert comparison.final("sgd", "test_accuracy").mean == pytest.approx(0.6)
    assert comparison.final("adam", "test_accuracy") == Estimate(0.8, 0.0)
    assert comparison.seconds_per_epoch("sgd") == 5


def test_table() -> None:
    lines = text(made_up({"sgd": [0.5, 0.7], "arturo": [0.8, 0.8]}))
    assert "60.00 ± 20.00" in lines and "80.00 ± 0.00" in lines and "arTuRO" in lines and "2 paired seeds" in lines
    assert "±" not in text(made_up({"sgd": [0.5]}))


def test_plan_pairs_seeds() -> None:
    configs = plan("digits-cnn", ["sgd", "arturo"], seeds=2, epochs=3)
    assert [(c.optimizer, c.seed) for c in configs] == [("sgd", 0), ("arturo", 0), ("sgd", 1), ("arturo", 1)]
    assert {(c.task, c.epochs, c.batch_size) for c in configs} == {("digits-cnn", 3, 32)}


def test_plan_rejects() -> None:
    with pytest.raises(ConfigError, match=r"^seeds: .* got 0"):
        plan("digits-mlp", ["sgd"], seeds=0)
    with pytest.raises(ConfigError, match=r"^optimizers: named twice"):
        plan("digits-mlp", ["sgd", "adam", "sgd"], seeds=1)


def test_divergence_is_reported_as_what_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wild = OptimizerEntry("wild", "", lambda: SGD, {"lr": 1e20})
    monkeypatch.setitem(OPTIMIZERS, "wild", wild)
    configs = plan("digits-mlp", ["wild", "sgd"], seeds=2, epochs=2)
    with progress_bar() as progress:
        bar = progress.add_task("", total=8, running="")
        comparison = compare(configs, data.load("digits"), progress, bar)
        assert progress.tasks[0].finished  # though the wild ones ended early
    assert "nan" in text(comparison)
    assert report.write(comparison, tmp_path).stat().st_size > 10_000
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["train_loss"] is None for row in rows] == [True, False, False, True, False, False]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["optimizers"]["wild"]["test_loss"] == {"mean": None, "doubled_error": None}
    assert summary["optimizers"]["sgd"]["test_loss"]["mean"] < 2.4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "metrics.jsonl", "summary.json"]
