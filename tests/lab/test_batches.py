"""A script that loops over ``Batches`` trains as ``arturo train`` does, and both as the records in results/adaptive do."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from arturo_lab.data import loading
from arturo_lab.data.augment import Pixels
from arturo_lab.data.examples import Examples
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks import metrics
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.schedules import cosine, lr_factor
from arturo_lab.tasks.task import Task
from arturo_lab.training.batches import Batches
from arturo_lab.training.train import evaluate, train

RECORD = 0.201410710811615  # breast cancer, AdamW with warm-up, seed 0: results/adaptive/defaults.jsonl of f216d77


def by_hand(task: Task, data: Examples, seed: int, warmup: float = 0.0) -> dict[str, float]:
    """AdamW in a loop as a script has it."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = AdamW(model.parameters())
    steps = task.epochs * task.steps(len(data), task.batch_size)
    scheduler = LambdaLR(optimizer, lr_factor(task.schedule, 0.1, warmup, steps))
    for inputs, targets in islice(Batches(task, data, seed), steps):
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
    return evaluate(model, data.test_inputs, data.test_targets, task)


def autoencoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 64))


@pytest.mark.parametrize("kind", ["a pass over the data", "steps", "replacement", "crops", "reconstruction"])
def test_a_loop_over_batches_is_a_training(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, where nothing is drawn beside the batches."""
    digits = replace(TASKS["digits-mlp"], epochs=2, metrics=(metrics.LOSS,))
    kinds = {
        "a pass over the data": digits,
        "steps": replace(digits, epoch_steps=30),  # the second epoch is in the second pass
        "replacement": replace(digits, epoch_steps=30, replacement=True),
        "crops": replace(digits, inputs=Pixels(crop="zero", flip=True)),
        "reconstruction": replace(digits, model=autoencoder, loss=metrics.reconstruction, reconstructs=True),
    }
    monkeypatch.setitem(TASKS, "by-hand", kinds[kind])
    data = loading.load("digits")
    last = train(RunConfig.for_task("by-hand", "adamw", seed=3, epochs=2, threads=1), data)[-1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert by_hand(kinds[kind], data, seed=3)["loss"] == last.test_loss
        assert by_hand(kinds[kind], data, seed=4)["loss"] != last.test_loss
    finally:
        torch.set_num_threads(threads)


def test_batches_depend_on_the_seed_alone() -> None:
    task, data = replace(TASKS["digits-mlp"], inputs=Pixels(crop="zero", flip=True)), loading.load("digits")
    torch.manual_seed(0)
    first = list(islice(Batches(task, data, seed=3), 50))  # an epoch has 45
    torch.manual_seed(1)
    again, other = (list(islice(Batches(task, data, seed), 50)) for seed in (3, 4))
    assert all(torch.equal(x, y) for one, two in zip(first, again, strict=True) for x, y in zip(one, two, strict=True))
    assert not torch.equal(first[0][1], other[0][1])


def test_the_laboratory_repeats_a_record() -> None:
    """A row of the script that the laboratory replaced, up to the rounding of another processor."""
    assert TASKS["breast-cancer-logistic"].schedule is cosine
    config = RunConfig.for_task("breast-cancer-logistic", "adamw-warmup", threads=1)
    last = train(config, loading.load("breast-cancer"))[-1]
    assert last.test_loss == pytest.approx(RECORD, rel=1e-5)
