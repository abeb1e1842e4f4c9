"""The batches of a run: what the training loop and scripts feed to a network, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from arturo_lab.data.examples import Examples
from arturo_lab.tasks.task import Task
from arturo_lab.training.order import Order


class Batches:
    """The training examples of ``data``, in the order that ``seed`` draws; `arturo train` with that seed sees the same.

    The generator belongs to the run, so that dropout cannot shift the order; it also draws crops, flips and negatives.

    Example:
        >>> from arturo_lab.data import loading
        >>> from arturo_lab.tasks.catalog import TASKS
        >>> task = TASKS["digits-mlp"]
        >>> batches = Batches(task, loading.load(task.data), seed=0)
        >>> inputs, targets = next(iter(batches))
        >>> inputs.shape, inputs.dtype, targets.shape
        (torch.Size([32, 1, 8, 8]), torch.float32, torch.Size([32]))
    """

    def __init__(self, task: Task, data: Examples, seed: int, batch_size: int | None = None) -> None:
        self.task, self.data = task, data
        self.size = task.batch_size if batch_size is None else batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.order = Order(task, len(data), self.size, self.generator)
        self.prepared = task.inputs.prepared(data.train_inputs)

    def at(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some examples, on the device of the data."""
        indices = indices.to(self.data.train_targets.device)
        inputs = self.task.inputs.for_training(self.prepared, indices, self.generator)
        return inputs, inputs if self.task.reconstructs else self.data.train_targets[indices]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch, without end."""
        while True:
            for indices in self.order.epoch().split(self.size):
                yield self.at(indices)
