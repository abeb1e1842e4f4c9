"""A task: everything about a training except the optimizer and the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.functional import cross_entropy

from arturo_lab.data import augment, loading
from arturo_lab.data.inputs import Inputs
from arturo_lab.errors import ConfigError
from arturo_lab.tasks.metrics import ACCURACY, Loss, Metric
from arturo_lab.tasks.schedules import Schedule, milestones


@dataclass(frozen=True)
class Task:
    """Data, network, loss, metrics, batches and length of a training.

    The defaults are the paper's: images with labels, cross-entropy, accuracy. It tests after every epoch on the whole test set,
    and the last epoch counts.

    Args:
        title: its name in tables.
        data: a name of :data:`arturo_lab.data.sources.DATA`, or a function that returns
            :class:`arturo_lab.data.examples.Examples`.
        model: makes the network; its random numbers are torch's global ones.
        epochs: how long.
        batch_size: examples of a step.
        loss: (what the network returns, targets) -> the mean over a batch.
        metrics: measured after every epoch; the first is what counts.
        inputs: what a network gets of the examples.
        reconstructs: whether the targets are the inputs themselves, as the network gets them.
        schedule: of lr.
        threads: of the CPU; None is torch's choice.
        epoch_steps: steps of an epoch, in whole batches that go through the data again and again. None: an epoch is one pass
            over the data, with an incomplete last batch.
        replacement: whether the examples of a batch are drawn with replacement; needs ``epoch_steps``.
    """

    title: str
    data: loading.Source
    model: Callable[[], nn.Module]
    epochs: int
    batch_size: int = 255
    loss: Loss = cross_entropy
    metrics: tuple[Metric, ...] = (ACCURACY,)
    inputs: Inputs = augment.PLAIN
    reconstructs: bool = False
    schedule: Schedule = milestones
    threads: int | None = None
    epoch_steps: int | None = None
    replacement: bool = False

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError(f"task: {self.title} must have a metric; metrics is empty")
        if self.replacement and self.epoch_steps is None:
            raise ConfigError(f"task: {self.title} draws with replacement, so it must say how many steps an epoch has")

    @property
    def metric(self) -> Metric:
        """The one that counts."""
        return self.metrics[0]

    @property
    def classifies(self) -> bool:
        return ACCURACY in self.metrics

    def steps(self, examples: int, batch_size: int) -> int:
        """Of an epoch."""
        return self.epoch_steps or math.ceil(examples / batch_size)
