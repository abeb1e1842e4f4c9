"""The networks: the paper's sizes, exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from arturo.lab import models


@pytest.mark.parametrize(
    ("build", "side", "weights"),
    [(models.digits_mlp, 8, 26_122), (models.digits_cnn, 8, 13_706), (models.fashion_mnist_cnn, 28, 390_410)],
)
def test_weights_and_shapes(build: Callable[..., nn.Module], side: int, weights: int) -> None:
    model = build()
    assert sum(p.numel() for p in model.parameters()) == weights
    assert model(torch.rand(3, 1, side, side)).shape == (3, 10)
    assert build(num_classes=7)(torch.rand(2, 1, side, side)).shape == (2, 7)


def test_fashion_mnist_cnn_is_the_papers() -> None:
    model = models.fashion_mnist_cnn()
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert shapes == [(32, 1, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 1152), (10, 256)]
    assert [m.p for m in model if isinstance(m, nn.Dropout)] == [0.2, 0.2, 0.2, 0.5]


@pytest.mark.parametrize("build", [models.digits_mlp, models.digits_cnn, models.fashion_mnist_cnn])
def test_every_weight_gets_a_gradient(build: Callable[..., nn.Module]) -> None:
    model = build().eval()
    side = 28 if build is models.fashion_mnist_cnn else 8
    model(torch.rand(16, 1, side, side)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
