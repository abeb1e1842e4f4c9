"""The tasks: which data, which network, how long. One entry of ``TASKS`` each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from arturo_lab.data import augment
from arturo_lab.data.augment import Pixels
from arturo_lab.registry import Registry
from arturo_lab.tasks import models
from arturo_lab.tasks.resnet import resnet18, resnet34

# (share of the training done, in [0, 1); the optimizer's factor at a milestone) -> factor on every group's lr. A share and
# not an epoch, so that a shortened run goes through the whole schedule.
Schedule = Callable[[float, float], float]

MILESTONES = (0.5, 0.75)  # the paper's: epochs 60 and 90 of 120, 80 and 120 of 160


def milestones(progress: float, factor: float) -> float:
    """The paper's schedule: lr times ``factor`` at half of the training, and again at three quarters.

    Example:
        >>> [milestones(epoch / 160, 0.1) for epoch in (0, 79, 80, 119)]
        [1.0, 1.0, 0.1, 0.1]
        >>> round(milestones(120 / 160, 0.1), 9)
        0.01
    """
    return float(factor ** sum(progress >= milestone for milestone in MILESTONES))


def cosine(progress: float, factor: float = 0.0) -> float:
    """From 1 to 0 along half a cosine. No milestones to tune, and the same curve suits every optimizer.

    Example:
        >>> [round(cosine(p), 3) for p in (0, 0.25, 0.5, 0.75, 1)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    return 0.5 * (1 + math.cos(math.pi * progress))


def constant(progress: float, factor: float = 0.0) -> float:
    """No schedule, for optimizers that want none."""
    return 1.0


@dataclass(frozen=True)
class Task:
    """Everything about a training except the optimizer and the seed. The loss is cross-entropy.

    The defaults are the paper's. Its tasks test after every epoch on the whole test set, and the last epoch counts.
    """

    title: str
    data: str  # a name of arturo_lab.data.sources.DATA
    model: Callable[[], nn.Module]
    epochs: int
    batch_size: int = 255
    pixels: Pixels = augment.PLAIN
    schedule: Schedule = milestones
    threads: int | None = None  # None is torch's choice


# On networks this small a second thread gains nothing, and on a busy machine the two wait for each other.
_digits = partial(Task, data="digits", epochs=25, batch_size=32, schedule=cosine, threads=1)
_fmnist = partial(Task, data="fashion-mnist", epochs=120)
_cifar10 = partial(Task, data="cifar10", epochs=160, pixels=augment.CIFAR10)
_cifar100 = partial(Task, data="cifar100", epochs=160, pixels=augment.CIFAR100)

TASKS: Registry[Task] = Registry(
    "task",
    {
        # Ours, for a first look without data to download: a short schedule, nothing tuned.
        "digits-mlp": _digits("8x8 digits, MLP", model=models.digits_mlp),
        "digits-cnn": _digits("8x8 digits, CNN", model=models.digits_cnn),
        # For exact Hessian diagonals, ours; the paper does not say which "smaller network" it took.
        "fmnist-small-cnn": _fmnist("Fashion-MNIST, small CNN", model=models.fashion_mnist_small_cnn, threads=1),
        # The paper's six.
        "fmnist-cnn": _fmnist("Fashion-MNIST, CNN", model=models.fashion_mnist_cnn),
        "fmnist-resnet18": _fmnist("Fashion-MNIST, ResNet-18", model=partial(resnet18, num_classes=10, channels=1)),
        "cifar10-cnn": _cifar10("CIFAR-10, CNN", model=models.cifar_cnn),
        "cifar10-resnet34": _cifar10("CIFAR-10, ResNet-34", model=partial(resnet34, num_classes=10)),
        "cifar100-cnn": _cifar100("CIFAR-100, CNN", model=partial(models.cifar_cnn, num_classes=100)),
        "cifar100-resnet34": _cifar100("CIFAR-100, ResNet-34", model=partial(resnet34, num_classes=100)),
    },
)
