"""The experiment behind the defaults: paired runs, a ledger that resumes, tables that tell the truth."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arturo_lab.data import loading
from arturo_lab.runs.config import RunConfig
from arturo_lab.training.train import train

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ROWS = Path(__file__).parents[2] / "results" / "adaptive" / "defaults.jsonl"


@pytest.fixture(scope="module")
def lab() -> Any:
    """The scripts' modules; they import each other as siblings, so their folder is on the path while they load."""
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        import defaults
        import ledger
        import problems
        import variants
    finally:
        sys.path.remove(str(EXPERIMENTS))
    modules = (defaults, ledger, problems, variants)
    return SimpleNamespace(**{module.__name__: module for module in modules})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only wait for each other's threads; the script itself sets one as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def short(lab: Any, name: str = "digits-mlp", steps: int = 40) -> Any:
    return dataclasses.replace(lab.problems.problems("test")[name], steps=steps)


def test_runs_are_paired_and_repeatable(lab: Any) -> None:
    problem = short(lab, "digits-cnn")
    first, second = problem.build(3), problem.build(3)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    (x1, y1), (x2, y2) = next(problem.batches(3)), next(problem.batches(3))
    assert torch.equal(x1, x2) and torch.equal(y1, y2)
    assert not torch.equal(y1, next(problem.batches(4))[1])

    adamw = lab.defaults.variant("adamw", {"lr": 1e-3})
    factor = lab.defaults.lr_factor("cosine", 0, problem.steps)
    one, two = (lab.defaults.train(problem, adamw, factor, 0, lambda: None) for _ in range(2))
    assert one["train_loss"] == two["train_loss"] and one["metrics"] == two["metrics"]
    assert one["train_loss"][-1] < one["train_loss"][0]


def test_divergence_has_no_metric(lab: Any) -> None:
    problem = short(lab)
    wild = lab.defaults.variant("sgd", {"lr": 1e30})
    row = lab.defaults.train(problem, wild, lambda step: 1.0, 0, lambda: None)
    assert row["diverged_at"] is not None and row["metrics"]["accuracy"] is None
    cell = lab.ledger.Cell(wild, "accuracy", [None, 0.5], [row])
    assert cell.score() == -float("inf") and cell.text() == "50.00 (1 of 2 diverged)"


def test_schedule(lab: Any) -> None:
    cosine = lab.defaults.lr_factor("cosine", 0, 100)
    assert (cosine(0), cosine(50), cosine(100)) == pytest.approx((1, 0.5, 0))
    warm = lab.defaults.lr_factor("constant", 0.03, 100)
    assert [warm(step) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]


def test_finished_runs_are_not_repeated(
    lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab.defaults, "problems", lambda split: {"digits-mlp": short(lab, steps=5)})
    out = tmp_path / "new" / "out.jsonl"
    command = ["defaults.py", "--problems", "all", "--optimizers", "adamw", "sgd", "--seeds", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--report"])
    lab.defaults.main()
    assert not out.exists()
    monkeypatch.setattr(sys, "argv", command)
    lab.defaults.main()
    before = out.read_text()
    assert len(before.splitlines()) == 12
    assert "sgd, best lr" in capsys.readouterr().out
    lab.defaults.main()
    assert out.read_text() == before
    monkeypatch.setattr(sys, "argv", [*command, "--again"])
    lab.defaults.main()
    assert len(out.read_text().splitlines()) == 24
    out.write_text(before + '{"cut')
    with pytest.raises(ValueError, match=r"out\.jsonl:13: not a result line"):
        lab.defaults.main()


def test_settings(lab: Any) -> None:
    assert lab.defaults.parse_settings(["drift=0.03", "dual=bisection", "eta=None"]) == {
        "drift": 0.03,
        "dual": "bisection",
        "eta": None,
    }
    with pytest.raises(ValueError, match="expected KEY=VALUE"):
        lab.defaults.parse_settings(["drift"])


def test_identity_covers_the_defaults(lab: Any) -> None:
    plain = lab.defaults.variant("adamw", {"lr": 1e-3})
    assert plain.hyperparameters["weight_decay"] == 0.01 and "fused" not in plain.hyperparameters
    assert plain.hyperparameters == lab.defaults.variant("adamw", {"lr": 1e-3, "fused": True}).hyperparameters


def test_best_is_the_lower_loss(lab: Any) -> None:
    low, high = (lab.ledger.Cell(lab.ledger.Variant("sgd", {}, {}), "loss", [value], []) for value in (1.5, 2.5))
    assert lab.ledger.best([high, low]) is low


def test_problems_are_the_laboratorys_tasks(lab: Any) -> None:
    """Bit for bit what `arturo train` does with the same seed, where nothing is drawn beside the batches."""
    problem = lab.problems.problems("test")["breast-cancer"]
    adamw = lab.defaults.variant("adamw", {"lr": 1e-3, "warmup": 0.1})
    row = lab.defaults.train(problem, adamw, lab.defaults.lr_factor("cosine", 0.1, problem.steps), 0, lambda: None)
    config = RunConfig.for_task("breast-cancer-logistic", "adamw", warmup=0.1)
    last = train(config, loading.load("breast-cancer"))[-1]
    assert row["metrics"] == {"loss": last.test_loss, "accuracy": last.test_accuracy}
    stored = next(row for row in lab.ledger.Ledger(ROWS).rows().values() if is_that_run(row["config"]))
    assert stored["metrics"]["loss"] == pytest.approx(last.test_loss, rel=1e-5)


def is_that_run(config: dict[str, Any]) -> bool:
    run = config["problem"], config["optimizer"], config["seed"], config["schedule"], config["split"]
    return run == ("breast-cancer", "adamw", 0, "cosine", "test") and config["hyperparameters"]["lr"] == 1e-3


def test_old_rows_are_readable(lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["defaults.py", "--optimizers", "adamw", "--seeds", "1", "--out", str(ROWS), "--report"]
    monkeypatch.setattr(sys, "argv", command)
    lab.defaults.main()
    out = capsys.readouterr().out
    assert all(name in out for name in ("lm-docstrings", "vision-transformer", "vae"))
