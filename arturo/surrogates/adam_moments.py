r"""The surrogate from Adam's moments (the paper's ablation of the trust region, ``fig:ablation``).

With :math:`\hat m_t` and :math:`\hat v_t`, Adam's running averages of the gradient and of its square after bias correction,

.. math:: a_t = \sqrt{\hat v_t}, \qquad b_t = \hat m_t - a_t \mu_t

so that the model's gradient at the mean is :math:`\hat m_t` and its curvature the one that Adam's step
:math:`\hat m_t / \sqrt{\hat v_t}` divides by. (A root of squared gradients is not a second derivative: its unit is L/θ. The
ablation tests just that.)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from arturo.surrogates.averages import averaged, intercept, no_average
from arturo.surrogates.surrogate import Observation, Surrogate, Tensors


def moments_update(a: Tensor, grad_avg: Tensor, g: Tensor, seen: Tensor, w_g: Tensor, w_h: Tensor) -> tuple[Tensor, Tensor]:
    r"""The new ``a`` and ``grad_avg`` :math:`= \hat m_t`; :math:`\hat v_{t-1}` is :math:`a^2` and needs no buffer.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> moments_update(one, one, -3 * one, torch.tensor([True]), torch.tensor(0.5), torch.tensor(1.0))
        (tensor([3.]), tensor([-1.]))
    """
    return averaged(a.square(), g.square(), seen, w_h).sqrt(), averaged(grad_avg, g, seen, w_g)


def _observe(a: Tensor, b: Tensor, memory: Tensors, at: Observation, k: Any) -> Tensors:
    (grad_avg,) = memory
    assert at.weights is not None
    a, grad_avg = moments_update(a, grad_avg, at.g, at.seen, *at.weights)
    return a, intercept(a, grad_avg, at.m), grad_avg


MOMENTS = Surrogate(("grad_avg",), no_average, _observe, keeps_averages=True)
