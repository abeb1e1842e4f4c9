"""Losses of two weights: small enough to see every step of an optimizer. One entry of ``LANDSCAPES`` each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from arturo_lab.registry import Registry

TILT = math.radians(30)  # of the noisy quadratic's long axis: a diagonal model cannot turn


def rosenbrock(theta: Tensor) -> Tensor:
    """(1 - x)^2 + 100 (y - x^2)^2: a steep bent valley with a nearly flat floor (Rosenbrock, 1960).

    Example:
        >>> rosenbrock(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
        tensor([  0., 101.])
    """
    x, y = theta.unbind(-1)
    return (1 - x).square() + 100 * (y - x.square()).square()


def beale(theta: Tensor) -> Tensor:
    """(1.5 - x + x y)^2 + (2.25 - x + x y^2)^2 + (2.625 - x + x y^3)^2: plateaus beside steep walls (Beale, 1958).

    Example:
        >>> beale(torch.tensor([[3.0, 0.5], [0.0, 1.0]]))
        tensor([ 0.0000, 14.2031])
    """
    x, y = theta.unbind(-1)
    return sum((c - x + x * y**k).square() for c, k in ((1.5, 1), (2.25, 2), (2.625, 3)))  # type: ignore[return-value]


def quadratic(theta: Tensor) -> Tensor:
    """1/2 (theta - m)^T H (theta - m) with m = (1, -1/2): curvatures 20 and 1, the long axis 30 degrees from upright.

    Example:
        >>> quadratic(torch.tensor([1.0, -0.5]))
        tensor(0.)
    """
    x, y = theta[..., 0] - 1.0, theta[..., 1] + 0.5
    steep, flat = math.cos(TILT) * x + math.sin(TILT) * y, math.cos(TILT) * y - math.sin(TILT) * x
    return 0.5 * (20 * steep.square() + flat.square())


@dataclass(frozen=True)
class Landscape:
    """A loss of two weights, where to start on it, and how noisy its gradient is."""

    title: str
    loss: Callable[[Tensor], Tensor]  # (..., 2) -> (...)
    minimum: tuple[float, float]  # where the loss is 0
    start: tuple[float, float]
    window: tuple[float, float, float, float]  # x from, x to, y from, y to
    noise: float = 0.0  # standard deviation of the noise on either entry of a gradient

    def gradient(self, theta: Tensor) -> Tensor:
        """The exact gradient, by autograd."""
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.loss(theta).sum(), theta)
        return gradient


LANDSCAPES: Registry[Landscape] = Registry(
    "landscape",
    {
        # Rosenbrock's own start, (-1.2, 1), is as high as the minimum: a long jump to the right lands there by luck.
        "rosenbrock": Landscape("Rosenbrock", rosenbrock, (1.0, 1.0), (-1.5, 2.0), (-2.9, 2.3, -1.0, 3.7)),
        "beale": Landscape("Beale", beale, (3.0, 0.5), (1.0, 1.5), (-0.6, 4.4, -1.9, 2.3)),
        "noisy-quadratic": Landscape("noisy quadratic", quadratic, (1.0, -0.5), (-1.5, 1.5), (-2.6, 3.0, -2.1, 2.9), noise=3.0),
    },
)
