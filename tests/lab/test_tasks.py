"""The tasks: the paper's protocol, number by number."""

from __future__ import annotations

import math

import pytest

from arturo_lab.data import augment
from arturo_lab.data.sources import DATA
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.schedules import cosine, milestones

PAPERS_TASKS = {
    "fmnist-cnn": ("fashion-mnist", 390_410, 120, augment.PLAIN),
    "fmnist-resnet18": ("fashion-mnist", 11_175_370, 120, augment.PLAIN),  # one channel, 10 classes
    "cifar10-cnn": ("cifar10", 653_386, 160, augment.CIFAR10),
    "cifar10-resnet34": ("cifar10", 21_289_802, 160, augment.CIFAR10),
    "cifar100-cnn": ("cifar100", 676_516, 160, augment.CIFAR100),
    "cifar100-resnet34": ("cifar100", 21_335_972, 160, augment.CIFAR100),
}


def test_the_papers_tasks_come_last() -> None:
    assert list(TASKS)[-6:] == list(PAPERS_TASKS)


@pytest.mark.parametrize("name", PAPERS_TASKS)
def test_papers_protocol(name: str) -> None:
    task = TASKS[name]
    data, weights, epochs, pixels = PAPERS_TASKS[name]
    model = task.model()
    assert (task.data, task.epochs, task.batch_size, task.inputs) == (data, epochs, 255, pixels)
    assert sum(p.numel() for p in model.parameters()) == weights
    assert list(model.parameters())[-1].shape == (DATA[data].num_classes,)


@pytest.mark.parametrize(("name", "at"), [("fmnist-cnn", (60, 90)), ("cifar100-resnet34", (80, 120))])
@pytest.mark.parametrize(
    ("optimizer", "factor"), [("sgd", 0.1), ("adamw", 0.1), ("arturo", 0.006**0.5), ("arturo-paper", 0.006**0.5)]
)
def test_milestones_are_the_papers_epochs_and_factors(name: str, at: tuple[int, int], optimizer: str, factor: float) -> None:
    task, steps = TASKS[name], 197
    entry = OPTIMIZERS[optimizer]

    def lr(step: int) -> float:
        return task.schedule(step / (task.epochs * steps), entry.milestone_factor)

    first, second = (epoch * steps for epoch in at)
    assert lr(0) == lr(first - 1) == 1
    assert lr(first) == lr(second - 1) == pytest.approx(factor)
    assert lr(second) == lr(task.epochs * steps - 1) == pytest.approx(factor**2)
    if optimizer.startswith("arturo"):
        assert entry.milestone_factor**2 == pytest.approx(0.006)  # the bound goes with lr squared


def test_milestones_scale_with_the_epochs() -> None:
    assert [milestones(epoch / 12, 0.1) for epoch in (5, 6, 8)] == [1, 0.1, 0.1]
    assert milestones(9 / 12, 0.1) == pytest.approx(0.01)
    assert milestones(0.49, 0.1) == 1 and milestones(0.5, 0.1) == 0.1  # within the only epoch


def test_digits_keep_their_cosine_and_untouched_values() -> None:
    for name in ("digits-mlp", "digits-cnn"):
        assert TASKS[name].schedule is cosine and (TASKS[name].epochs, TASKS[name].batch_size) == (25, 32)
        assert OPTIMIZERS["arturo"].for_task(name, images=1437) == {}
    assert cosine(0.0, 0.1) == 1 and cosine(1.0, 0.1) == pytest.approx(0) and cosine(0.5, math.pi) == pytest.approx(0.5)


def test_options_scale_a_task() -> None:
    config = RunConfig.for_task("cifar10-cnn", "sgd", epochs=8, batch_size=128, subset=5000)
    assert (config.epochs, config.batch_size, config.share.subset) == (8, 128, 5000)
