"""Does the unit of the loss matter? Two tasks trained on a loss times 1e-4 and times 1e4.

    arturo compare experiments/scaled_loss.py:BYTES_SMALL experiments/scaled_loss.py:BYTES_LARGE byte-transformer \\
        --optimizers adaarturo --seeds 1
    arturo compare experiments/scaled_loss.py:RESNET_SMALL experiments/scaled_loss.py:RESNET_LARGE fmnist-small-resnet \\
        --optimizers adaarturo --seeds 1

`unscaled_loss` is comparable between them; train loss and test loss are scaled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.metrics import LOSS, Loss, Metric
from arturo_lab.tasks.task import Task


def scaled(task: Task, factor: float) -> Task:
    """The same task, trained on its loss times ``factor``. The metric that counts is the same, never scaled."""

    def loss(output: Any, targets: Tensor) -> Tensor:
        return factor * task.loss(output, targets)

    unscaled = Metric("unscaled_loss", "lower", "nats", of=each(task.loss))
    metrics = [unscaled if metric is LOSS else metric for metric in task.metrics]
    with_loss = metrics if unscaled in metrics else [*metrics, unscaled]
    return replace(task, title=f"{task.title}, loss x {factor:g}", loss=loss, metrics=tuple(with_loss))


def each(loss: Loss) -> Any:
    """The mean over a batch as a value for each of its examples."""
    return lambda output, targets: loss(output, targets).expand(len(targets))


BYTES_SMALL, BYTES_LARGE = (scaled(TASKS["byte-transformer"], factor) for factor in (1e-4, 1e4))
RESNET_SMALL, RESNET_LARGE = (scaled(TASKS["fmnist-small-resnet"], factor) for factor in (1e-4, 1e4))
