"""The scripts of experiments/ that loop over a task's batches themselves, as small as they go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arturo_lab.references import look_up
from arturo_lab.tasks.catalog import TASKS

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The scripts set one; the other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(TASKS, "byte-transformer", replace(TASKS["byte-transformer"], epochs=1, epoch_steps=2))
    out = tmp_path / "recipes.md"
    monkeypatch.setattr(sys, "argv", ["recipes.py", "--recipes", "layer-wise", "--lr", "1e-3", "--out", str(out)])
    look_up("script", f"{EXPERIMENTS / 'recipes.py'}:main")()
    (row,) = (line for line in out.read_text().splitlines() if line.startswith("| layer-wise | 0.001 |"))
    assert all(3 < float(cell) < 7 for cell in row.split("|")[3:5])  # nats of a byte; 5.5 is a guess


def test_first_gradients(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["first_gradients.py", "--tasks", "digits-mlp"])
    look_up("script", f"{EXPERIMENTS / 'first_gradients.py'}:main")()
    assert "| digits-mlp | 0.0024 | 0.0022 | 0.0026 | 67% |" in capsys.readouterr().out  # as experiments/LOG.md has it
