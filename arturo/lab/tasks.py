"""The tasks: which data, which network, how long. One entry of ``TASKS`` each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from arturo.lab import models
from arturo.lab.registry import Registry

# Share of the training done, in [0, 1) -> factor on every group's lr. A share and not an epoch, so that a shortened run
# goes through the whole schedule.
Schedule = Callable[[float], float]


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine. No milestones to tune, and the same curve suits every optimizer.

    Example:
        >>> [round(cosine(p), 3) for p in (0, 0.25, 0.5, 0.75, 1)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Task:
    """Everything about a training except the optimizer and the seed. The loss is cross-entropy."""

    title: str
    data: str  # a name that arturo.lab.data.load knows
    model: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    schedule: Schedule = cosine
    threads: int | None = None  # None is torch's choice


TASKS: Registry[Task] = Registry(
    "task",
    {
        # On networks this small a second thread gains nothing, and on a busy machine the two wait for each other.
        "digits-mlp": Task("8x8 digits, MLP", "digits", models.digits_mlp, epochs=25, batch_size=32, threads=1),
        "digits-cnn": Task("8x8 digits, CNN", "digits", models.digits_cnn, epochs=25, batch_size=32, threads=1),
        # The paper's network and batch size; its 120 epochs take an afternoon on two cores.
        "fmnist-cnn": Task("Fashion-MNIST, CNN", "fashion-mnist", models.fashion_mnist_cnn, epochs=12, batch_size=255),
    },
)
