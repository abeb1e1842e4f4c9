"""The small networks: the paper's sizes, exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from arturo_lab.tasks import models

SMALL = {
    models.digits_mlp: ((1, 8, 8), 26_122),
    models.digits_cnn: ((1, 8, 8), 13_706),
    models.fashion_mnist_cnn: ((1, 28, 28), 390_410),
    models.fashion_mnist_small_cnn: ((1, 28, 28), 14_410),
    models.cifar_cnn: ((3, 32, 32), 653_386),
}


@pytest.mark.parametrize("build", SMALL)
def test_weights_and_shapes(build: Callable[..., nn.Module]) -> None:
    shape, weights = SMALL[build]
    model = build()
    assert sum(p.numel() for p in model.parameters()) == weights
    assert model(torch.rand(3, *shape)).shape == (3, 10)
    assert build(num_classes=7)(torch.rand(2, *shape)).shape == (2, 7)


def shapes(model: nn.Sequential) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in model.parameters() if p.ndim > 1]


def dropouts(model: nn.Sequential) -> list[float]:
    return [m.p for m in model if isinstance(m, nn.Dropout)]


def test_fashion_mnist_cnn_is_the_papers() -> None:
    model = models.fashion_mnist_cnn()
    assert shapes(model) == [(32, 1, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 1152), (10, 256)]
    assert dropouts(model) == [0.2, 0.2, 0.2, 0.5]
    assert sum(isinstance(m, nn.MaxPool2d) for m in model) == 2


def test_cifar_cnn_is_the_papers() -> None:
    model = models.cifar_cnn(num_classes=100)
    assert shapes(model) == [(32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 128, 3, 3), (256, 1024), (100, 256)]
    assert dropouts(model) == [0.2, 0.2, 0.2, 0.2, 0.5]
    block = ["Conv2d", "ReLU", "MaxPool2d", "Dropout"]
    assert [type(m).__name__ for m in model] == 4 * block + ["Flatten", "Linear", "ReLU", "Dropout", "Linear"]


@pytest.mark.parametrize("build", SMALL)
def test_every_weight_gets_a_gradient(build: Callable[..., nn.Module]) -> None:
    model = build().eval()
    model(torch.rand(16, *SMALL[build][0])).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
