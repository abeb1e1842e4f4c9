"""experiments/scaled_loss.py: the loss that trains is scaled, what is reported is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arturo_lab.data import loading
from arturo_lab.references import look_up
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.metrics import LOSS
from arturo_lab.training.train import train

FILE = Path(__file__).parents[2] / "experiments" / "scaled_loss.py"


@pytest.mark.parametrize(
    ("name", "factor"), [("BYTES_SMALL", 1e-4), ("BYTES_LARGE", 1e4), ("RESNET_SMALL", 1e-4), ("RESNET_LARGE", 1e4)]
)
def test_tasks(name: str, factor: float) -> None:
    task = TASKS[f"{FILE}:{name}"]
    plain = TASKS["byte-transformer" if name.startswith("BYTES") else "fmnist-small-resnet"]
    torch.manual_seed(0)
    shape, high = ((4, 8, 256), 256) if name.startswith("BYTES") else ((4, 10), 10)
    output, targets = torch.randn(shape), torch.randint(high, shape[:-1])
    loss = plain.loss(output, targets).item()
    assert task.loss(output, targets).item() == pytest.approx(factor * loss)
    unscaled = task.metrics[-1]
    assert unscaled.of is not None and unscaled.of(output, targets).mean().item() == pytest.approx(loss)
    assert task.metric is (unscaled if plain.metric is LOSS else plain.metric) and task.data == plain.data


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_an_epoch(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaArturo, whose steps do not depend on the unit of the loss; SGD's do."""
    scaled: Any = look_up("task", f"{FILE}:scaled")
    plain = replace(TASKS["digits-mlp"], metrics=(LOSS,))
    monkeypatch.setitem(TASKS, "plain", plain)
    monkeypatch.setitem(TASKS, "scaled", scaled(plain, factor))
    digits = loading.load("digits")

    def last(task: str, optimizer: str) -> Any:
        return train(RunConfig.for_task(task, optimizer, epochs=1, subset=320, threads=1), digits)[-1]

    ours, other = last("scaled", "adaarturo"), last("plain", "adaarturo")
    assert ours.others["unscaled_loss"] == pytest.approx(ours.test_loss / factor)
    assert ours.others["unscaled_loss"] == pytest.approx(other.test_loss, rel=1e-3)
    sgd = last("scaled", "sgd").others["unscaled_loss"]
    assert sgd != pytest.approx(last("plain", "sgd").test_loss, rel=0.01)
