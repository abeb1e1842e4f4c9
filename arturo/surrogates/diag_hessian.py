r"""The surrogate from a diagonal of the Hessian (the paper's second ablation, ``fig:ablation``).

With running averages of the diagonal :math:`h` and of the gradient, both after bias correction,

.. math:: a_t = \hat h_t, \qquad b_t = \hat g_t - a_t \mu_t

Which diagonal that is, of the Hessian or of the Gauss-Newton matrix, exact or estimated: :mod:`arturo.surrogates.diagonals`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arturo.surrogates.averages import averaged, intercept, no_average
from arturo.surrogates.surrogate import Observation, Surrogate, Tensors


def diagonal_update(
    a: Tensor, grad_avg: Tensor, g: Tensor, h: Tensor, seen: Tensor, w_g: Tensor, w_h: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The new ``a`` :math:`= \hat h_t` and ``grad_avg`` :math:`= \hat g_t`.

    Example:
        >>> one = torch.ones(1)
        >>> diagonal_update(one, one, -3 * one, 5 * one, torch.tensor([True]), torch.tensor(0.5), torch.tensor(0.25))
        (tensor([2.]), tensor([-1.]))
    """
    return averaged(a, h, seen, w_h), averaged(grad_avg, g, seen, w_g)


def _observe(a: Tensor, b: Tensor, memory: Tensors, at: Observation, k: Any) -> Tensors:
    (grad_avg,) = memory
    assert at.weights is not None
    h = torch.zeros_like(a) if at.h is None else at.h  # lr = 0 in a tensor: none was asked for, and every write is masked
    a, grad_avg = diagonal_update(a, grad_avg, at.g, h, at.seen, *at.weights)
    return a, intercept(a, grad_avg, at.m), grad_avg


DIAGONAL = Surrogate(("grad_avg",), no_average, _observe, keeps_averages=True)
