r"""The trust-region problem of one step, as pure functions over tensors.

The surrogate of the loss around the mean :math:`\mu` is :math:`f(\theta) = \tfrac12 \theta^T A \theta + \theta^T b`
with diagonal :math:`A`. One step solves (``obj:itropt``)

.. math:: \min_\pi \; E_\pi[f] + \rho C_\lambda + \nu C_\Sigma \quad\text{s.t.}\quad C_\mu \le \varepsilon

for :math:`\pi = N(\mu', \Sigma')`. Everything here is per weight; the sums over weights are the only coupling.

Letters: ``m`` mean, ``prec`` diagonal of :math:`\Sigma^{-1}`, ``a`` and ``b`` the surrogate, ``rho_lam`` the product
:math:`\rho\lambda`, ``eta`` the multiplier of the constraint.

**Several bounds.** Group g has the bound e_g; B is the largest. The constraint is solved for all weights together,

.. math:: u = \frac{num}{A + \eta\,prec}, \qquad C = \tfrac12 \sum prec\,u^2 \le B,

and group g then moves by :math:`f_g u` with :math:`f_g = \sqrt{e_g / B} \le 1`: half the lr is half the step, and the KL taken,
:math:`\sum_g f_g^2 C_g`, is at most B. With equal bounds f = 1 and this is the paper's problem.

**Units.** ``eta`` ranges from 0 to beyond float32's range (tiny bounds, huge gradients). Kernels therefore never see it:
they get ``s_w = 1 / w`` and ``eta_w = eta / w`` with ``w = max(1, eta)``, both at most 1, and what comes out is scaled back
in float64 (:func:`constraint`). ``eta = inf`` is the limit ``s_w = 0, eta_w = 1``.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Scalar = float | Tensor
S = TypeVar("S", float, Tensor)  # a number of the host, or one of the device


def model_gradient(a: Tensor, b: Tensor, m: Tensor, rho_lam: Scalar) -> Tensor:
    r"""Gradient of the regularised surrogate at the mean, :math:`a m + b + \rho\lambda m` (called ``num``).

    The slope is used as fitted, even where it is negative: here it only predicts the gradient.
    No fused multiply-add: after ``b = g - a m`` a zero gradient must give exactly zero.

    Args:
        a, b: the surrogate, in loss per squared weight and loss per weight.
        m: the mean.

    Example:
        >>> model_gradient(torch.tensor([2.0]), torch.tensor([-1.0]), torch.tensor([3.0]), 0.5)  # 2 * 3 - 1 + 0.5 * 3
        tensor([6.5000])
    """
    num = a * m + b
    return num if isinstance(rho_lam, float) and rho_lam == 0 else num + rho_lam * m


def curvature(a: Tensor, rho_lam: Scalar, floor: Scalar | None) -> Tensor:
    r"""Curvature of the regularised surrogate, :math:`\max(a, floor) + \rho\lambda` (called ``A``).

    The floor is ours: the paper divides by ``a`` whatever its sign (``floor=None``). In loss per squared weight.

    Example:
        >>> curvature(torch.tensor([-1.0, 2.0]), 0.5, 0.0)
        tensor([0.5000, 2.5000])
    """
    return (a if floor is None else a.clamp(min=floor)) + rho_lam


def step_direction(num: Tensor, A: Tensor, prec: Tensor, s_w: Scalar, eta_w: Scalar) -> tuple[Tensor, Tensor]:
    r"""``x = num / den`` and ``den = s_w A + eta_w prec``; the step is ``u = s_w x`` (``eq:primal_mean`` as a difference).

    ``eq:primal_mean`` reads :math:`\mu' = (A + \eta\Sigma^{-1} + \rho\lambda I)^{-1} (\eta\Sigma^{-1}\mu - b)`;
    subtracting it from :math:`\mu` leaves num / den without cancellation.

    Example:
        >>> x, den = step_direction(torch.tensor([6.0]), torch.tensor([1.0]), torch.tensor([4.0]), 1.0, 0.5)
        >>> x, den  # with eta = 0.5 the mean moves by -2
        (tensor([2.]), tensor([3.]))
    """
    den = s_w * A + eta_w * prec
    return num / den, den


def primal_precision(A: Tensor, prec: Tensor, rho: Scalar, nu: Scalar) -> Tensor:
    r"""Next diagonal precision, :math:`(A + \nu\,prec) / (\rho + \nu)` (``eq:primal_var``, inverted).

    It does not depend on eta. Its fixed point is :math:`A / \rho`. Per squared weight.

    Example:
        >>> primal_precision(torch.tensor([2.0]), torch.tensor([4.0]), rho=0.5, nu=1.5)  # 4 is the fixed point of 2 / 0.5
        tensor([4.])
    """
    return (A + nu * prec) * (1 / (rho + nu))


def constraint_sums(x: Tensor, den: Tensor, prec: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    r"""The sums behind C, C' and C'' (``eq:dual_der`` and its derivatives), in float64 where the device has it.

    :math:`S_0 = \sum prec\,x^2`, :math:`S_1 = \sum prec^2 x^2 / den`, :math:`S_2 = \sum prec^3 x^2 / den^2`.
    In float32 the squares would leave the range for gradients that the filter still accepts.

    Example:
        >>> sums = constraint_sums(torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([4.0]), torch.float64)
        >>> [round(s.item(), 4) for s in sums]  # 4 * 2^2, then twice 4/3 of it
        [16.0, 21.3333, 28.4444]
    """
    term = x.to(dtype, copy=True).mul_(x * prec)
    s_0 = term.sum()
    ratio = (prec / den).to(dtype)
    s_1 = term.mul_(ratio).sum()
    s_2 = term.mul_(ratio).sum()
    return s_0, s_1, s_2


def kl_mean(new_mean: Tensor, mean: Tensor, prec: Tensor) -> Tensor:
    r""":math:`C_\mu = \tfrac12 \sum prec\,(\mu' - \mu)^2`, in nats: the part of the divergence that the bound limits.

    Example:
        >>> kl_mean(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([4.0]))
        tensor(8.)
    """
    return 0.5 * (prec * (new_mean - mean).square()).sum()


def kl_covariance(new_prec: Tensor, prec: Tensor) -> Tensor:
    r""":math:`C_\Sigma = \tfrac12 \sum (prec/prec' - 1 + \log prec' - \log prec)`, in nats: penalised, not bounded.

    Example:
        >>> kl_covariance(torch.tensor([4.0]), torch.tensor([4.0]))
        tensor(0.)
    """
    return 0.5 * (prec / new_prec - 1 + new_prec.log() - prec.log()).sum()


def constraint(w: S, s_0: S, s_1: S, s_2: S) -> tuple[S, S, S]:
    r"""C, C' and C'' from :func:`constraint_sums` taken in units of ``w``.

    :math:`C = \frac{S_0}{2 w^2}`, :math:`C' = -\frac{S_1}{w^3}`, :math:`C'' = \frac{3 S_2}{w^4}`. C in nats.

    Example:
        >>> constraint(1.0, 16.0, 21.0, 28.0)
        (8.0, -21.0, 84.0)
    """
    return s_0 / (2 * w * w), -s_1 / (w * w * w), 3 * s_2 / (w * w * w * w)
