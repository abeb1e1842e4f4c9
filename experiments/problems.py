"""The laboratory's tasks as the search log has them: one network, its batches and its length; the loop is in defaults.py.

Seeds are paired: `build(seed)` gives every optimizer the same start and `batches(seed)` the same batches in the same order,
those of `arturo train` with that seed. `problems("test")` is for reporting; any other split is a fold such as "1/5" of the
training examples, on which choices are made: the test set has no part in it.

The names are those of the rows in results/adaptive; `TASKS` says which task each is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.tasks.catalog import TASKS as LABORATORY
from arturo_lab.tasks.metrics import ACCURACY
from arturo_lab.tasks.task import Task
from arturo_lab.training.order import Order
from arturo_lab.training.train import evaluate

Batches = Iterator[tuple[Tensor, Tensor]]
DIGITS = {"epochs": 50, "epoch_steps": 44}  # whole batches, twice the laboratory's length
TASKS = {
    "digits-mlp": replace(LABORATORY["digits-mlp"], **DIGITS),
    "digits-cnn": replace(LABORATORY["digits-cnn"], **DIGITS),
    "fmnist-cnn": LABORATORY["fmnist-cnn-short"],
    "small-resnet": LABORATORY["fmnist-small-resnet"],
    "lm-docstrings": LABORATORY["byte-transformer"],
    "cifar10-cnn": LABORATORY["cifar10-cnn-short"],
    "vision-transformer": LABORATORY["cifar10-vit"],
    "gru-docstrings": LABORATORY["byte-gru"],
    "autoencoder": LABORATORY["fmnist-autoencoder"],
    "vae": LABORATORY["fmnist-vae"],
    "skip-gram": LABORATORY["skip-gram"],
    "digits-mlp-batch-1": LABORATORY["digits-mlp-batch-1"],
    "breast-cancer": LABORATORY["breast-cancer-logistic"],
    "diabetes": LABORATORY["diabetes-mlp"],
}
SECONDS = {  # of one run with AdamW on one core, measured; the progress bar weighs problems by it
    "digits-mlp": 3, "digits-cnn": 6, "fmnist-cnn": 80, "small-resnet": 75, "lm-docstrings": 80, "cifar10-cnn": 60,
    "vision-transformer": 60, "gru-docstrings": 40, "autoencoder": 10, "vae": 10, "skip-gram": 20, "digits-mlp-batch-1": 6,
    "breast-cancer": 1, "diabetes": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A task, the data it is trained and judged on, and its length."""

    name: str
    task: Task
    data: Callable[[], Examples]
    steps: int
    seconds: float

    @property
    def metric(self) -> str:
        """What counts of `evaluate`: "accuracy" (a fraction, more is better) or "loss" (less is better)."""
        return "accuracy" if self.task.metric is ACCURACY else "loss"

    def build(self, seed: int) -> nn.Module:
        """The untrained network, the same for every optimizer."""
        torch.manual_seed(seed)
        return self.task.model()

    def batches(self, seed: int) -> Batches:
        """An endless stream of inputs and targets."""
        data, generator = self.data(), torch.Generator().manual_seed(seed)
        prepared = self.task.inputs.prepared(data.train_inputs)
        order = Order(self.task, len(data), self.task.batch_size, generator)
        while True:
            for batch in order.epoch().split(self.task.batch_size):
                inputs = self.task.inputs.for_training(prepared, batch, generator)
                yield inputs, inputs if self.task.reconstructs else data.train_targets[batch]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over a batch."""
        return self.task.loss(model(inputs), targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        data = self.data()
        metrics = evaluate(model, data.test_inputs, data.test_targets, self.task)
        model.train()
        return metrics


@cache
def examples(data: loading.Source, split: str) -> Examples:
    return loading.load(data).fold(None if split == "test" else split)


@cache
def problems(split: str) -> dict[str, Problem]:
    """All problems, judged on the test set ("test") or on a fold ("1/5")."""

    def problem(name: str, task: Task) -> Problem:
        assert task.epoch_steps is not None
        steps = task.epochs * task.epoch_steps
        return Problem(name, task, lambda: examples(task.data, split), steps, SECONDS[name])

    return {name: problem(name, task) for name, task in TASKS.items()}
