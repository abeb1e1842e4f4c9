r"""Running averages that are right from the first step on.

Adam's form, :math:`x_t = \beta x_{t-1} + (1 - \beta) y_t` from :math:`x_0 = 0`, needs the division by :math:`1 - \beta^t`
whenever it is read. The corrected average :math:`\hat x_t = x_t / (1 - \beta^t)` is kept here instead; it obeys

.. math:: \hat x_t = \hat x_{t-1} + w_t (y_t - \hat x_{t-1}), \qquad w_t = \frac{1 - \beta}{1 - \beta^t}

so that :math:`\hat x_1 = y_1`, whatever it was before. A missing entry leaves its average unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DEFAULT = (0.9, 0.999)  # Adam's and AdaHessian's: of the gradient, of the curvature


def average_weight(beta: float, t: Tensor) -> Tensor:
    """``w_t``, the weight of the t-th observation; 1 for the first, 1 - beta in the long run.

    Example:
        >>> average_weight(0.5, torch.tensor([1.0, 2.0, 50.0], dtype=torch.float64))
        tensor([1.0000, 0.6667, 0.5000], dtype=torch.float64)
    """
    if beta == 0:
        return torch.ones_like(t)
    rate = math.log(beta)
    return math.expm1(rate) / torch.expm1(t * rate)


def averaged(old: Tensor, new: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
    """The average after one more observation, where there is one.

    Example:
        >>> old, new, seen = torch.tensor([1.0, 1.0]), torch.tensor([3.0, float("nan")]), torch.tensor([True, False])
        >>> averaged(old, new, seen, torch.tensor(0.5))
        tensor([2., 1.])
    """
    return torch.where(seen, torch.lerp(old, new, weight.to(old.dtype)), old)


def intercept(a: Tensor, grad_avg: Tensor, m: Tensor) -> Tensor:
    """b such that the model's gradient at the mean is the averaged one: ``a m + b = grad_avg``.

    Example:
        >>> intercept(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([3.0]))
        tensor([-5.])
    """
    return grad_avg - a * m


def no_average(group: Mapping[str, Any]) -> tuple[float]:
    """``grad_avg`` before the first step: of no consequence, since the first observation has the weight 1."""
    return (0.0,)
