r"""The surrogate from plain gradients: one two-state Kalman filter per weight (``sec:drift_model``).

State :math:`w = (a, b)` drifts as a random walk, :math:`w_t = w_{t-1} + N(0, q I)`, and is observed through the gradient,
:math:`g_t = a\,m_t + b + N(0, r)`. Its variance P is symmetric: ``P_aa``, ``P_ab``, ``P_bb``.

Only the ratio q / r matters to (a, b) when P_0 scales with them; the filter's gain settles near sqrt(q / r).
At a constant mean nothing is observed along (1, -m): there P grows like q t, which does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar
from arturo.surrogates.surrogate import Observation, Surrogate, Tensors


def first_intercept(g: Tensor, seen: Tensor, m: Tensor, a_0: Scalar, consistent: bool) -> Tensor:
    r"""b before the first update: :math:`g - a_0 m` (``consistent``) or the published :math:`g`.

    With the published start the model's first gradient is :math:`a_0 m + g`: the first steps mostly shrink the weights.
    Where nothing is observed, :math:`-a_0 m`: the model predicts a zero gradient.

    Example:
        >>> g, m = torch.tensor([1.0, float("nan")]), torch.tensor([2.0, 2.0])
        >>> first_intercept(g, g.isfinite(), m, a_0=0.5, consistent=True)
        tensor([ 0., -1.])
    """
    if consistent:
        return torch.where(seen, g, torch.zeros_like(g)) - a_0 * m
    return torch.where(seen, g, -a_0 * m)


def filter_update(
    a: Tensor, b: Tensor, P_aa: Tensor, P_ab: Tensor, P_bb: Tensor, g: Tensor, seen: Tensor, m: Tensor, q: Scalar, r: Scalar
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""One predict and update of the filter (``eq:filter_update_rule``); returns the new ``a, b, P_aa, P_ab, P_bb``.

    Where ``seen`` is false the filter predicts (P grows by q) and does not update.

    The printed :math:`P - v K K^T` cancels in float32 and turns indefinite once :math:`m^2 P_{aa}` is far above r. With
    :math:`\det P^- = \max(\det P, 0) + q\,tr P + q^2` and :math:`h = P_{ab} + m P_{aa}` the same update is

    .. math:: v = r + (h^2 + \det P^-) / P_{aa}, \quad
        P_{aa} \leftarrow \frac{r P_{aa} + \det}{v}, \;
        P_{ab} \leftarrow \frac{r P_{ab} - m \det}{v}, \;
        P_{bb} \leftarrow \frac{r P_{bb} + m^2 \det}{v}

    in which the diagonal is a sum of positive terms and the new determinant is :math:`r \det P^- / v`. Where that is below
    the rounding of :math:`P_{aa} P_{bb}` (q far above r) :math:`P_{ab}` is held just inside: P as stored is positive definite.

    Example:
        >>> one, zero, seen = torch.ones(1), torch.zeros(1), torch.ones(1, dtype=torch.bool)
        >>> a, b, *_ = filter_update(zero, zero, one, zero, one, 3 * one, seen, one, q=0.0, r=1.0)
        >>> a, b  # a gradient of 3 at m = 1 is shared by slope, intercept and noise
        (tensor([1.]), tensor([1.]))
    """
    det = (P_aa * P_bb - P_ab.square()).clamp(min=0) + q * (P_aa + P_bb) + q * q
    P_aa, P_bb = P_aa + q, P_bb + q
    a, b, inverse_v = _correct(a, b, P_aa, P_ab, P_bb, det, g, seen, m, r)
    m_det = m * det
    P_ab = torch.where(seen, (r * P_ab - m_det) * inverse_v, P_ab)
    P_aa = torch.where(seen, (r * P_aa + det) * inverse_v, P_aa)
    P_bb = torch.where(seen, (r * P_bb + m * m_det) * inverse_v, P_bb)
    inside = P_aa.sqrt() * P_bb.sqrt() * (1 - 8 * torch.finfo(P_aa.dtype).eps)
    return a, b, P_aa, torch.minimum(torch.maximum(P_ab, -inside), inside), P_bb


def factored_update(
    a: Tensor, b: Tensor, P_aa: Tensor, slope: Tensor, rest: Tensor, g: Tensor, seen: Tensor, m: Tensor, q: Scalar, r: Scalar
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""The same update of P's square-root-free Cholesky factor, for state that is rounded (``state_dtype``).

    P rounded entry by entry need not stay positive definite; :math:`P_{aa}`, :math:`slope = P_{ab} / P_{aa}` (of b on a)
    and :math:`rest = P_{bb} - P_{ab}^2 / P_{aa}` (b's variance once a is known) are a variance whatever their last bits,
    as long as the first and the last are positive. The new ones are

    .. math:: P_{aa} \leftarrow \frac{r P_{aa} + \det}{v}, \quad
        slope \leftarrow \frac{r P_{ab} - m \det}{r P_{aa} + \det}, \quad
        rest \leftarrow \frac{r \det}{r P_{aa} + \det}

    Example:
        >>> one, half, seen = torch.ones(1), torch.full((1,), 0.5), torch.ones(1, dtype=torch.bool)
        >>> plain = filter_update(one, one, one, half, one, one, seen, one, q=0.0, r=1.0)
        >>> a, b, P_aa, slope, rest = factored_update(one, one, one, half, 0.75 * one, one, seen, one, q=0.0, r=1.0)
        >>> [torch.allclose(x, y) for x, y in zip(plain, (a, b, P_aa, slope * P_aa, rest + slope**2 * P_aa), strict=True)]
        [True, True, True, True, True]
    """
    P_ab = slope * P_aa
    P_bb = rest + slope * P_ab
    det = P_aa * rest + q * (P_aa + P_bb) + q * q
    P_aa, P_bb = P_aa + q, P_bb + q
    a, b, inverse_v = _correct(a, b, P_aa, P_ab, P_bb, det, g, seen, m, r)
    total = r * P_aa + det
    inverse = 1 / torch.where(seen, total, P_aa)
    slope = torch.where(seen, r * P_ab - m * det, P_ab) * inverse
    rest = torch.where(seen, r * det, det) * inverse
    return a, b, torch.where(seen, total * inverse_v, P_aa), slope, rest


def _correct(
    a: Tensor, b: Tensor, P_aa: Tensor, P_ab: Tensor, P_bb: Tensor, det: Tensor, g: Tensor, seen: Tensor, m: Tensor, r: Scalar
) -> tuple[Tensor, Tensor, Tensor]:
    """The new a and b, and 1 / v, from the prediction's variance and its determinant. K is the gain."""
    h = P_ab + m * P_aa
    inverse_v = P_aa / (r * P_aa + (h.square() + det))
    K_a, K_b = h * inverse_v, (P_bb + m * P_ab) * inverse_v
    error = torch.where(seen, g - (a * m + b), torch.zeros_like(g))
    return a + K_a * error, b + K_b * error, inverse_v


def _initial(group: Mapping[str, Any]) -> tuple[float, float, float]:
    """P_0 times the unit matrix; without initial_filter_variance, about where the intercept's variance settles."""
    P_0, q, r = group["initial_filter_variance"], group["drift"], group["noise"]
    if P_0 is None:
        P_0 = math.sqrt(q * r) if q > 0 else r
    return P_0, 0.0, P_0


def _observe(update: Callable[..., Tensors]) -> Callable[[Tensor, Tensor, Tensors, Observation, Any], Tensors]:
    def observe(a: Tensor, b: Tensor, P: Tensors, at: Observation, k: Any) -> Tensors:
        if at.first is not False:
            b_0 = first_intercept(at.g, at.seen, at.m, k.a_0, k.consistent)
            b = b_0 if at.first is True else torch.where(at.first, b_0, b)
        return update(a, b, *P, at.g, at.seen, at.m, k.q, k.r)

    return observe


KALMAN = Surrogate(("P_aa", "P_ab", "P_bb"), _initial, _observe(filter_update), keeps_averages=False)
FACTORED = Surrogate(("P_aa", "P_slope", "P_rest"), _initial, _observe(factored_update), keeps_averages=False)
