r"""The model that :class:`arturo.AdaArturo` learns from plain gradients, as pure functions.

One tensor at a time, in a basis in which its Gaussian is diagonal (:mod:`arturo.kronecker`). Letters: ``M`` the filtered
gradient, ``r`` its noise, ``s`` the noise's standard deviation, ``sigma`` the tensor's size, ``tau`` its drift per step
relative to that size. docs/derivation-adaptive.md has the whole argument.

1. **Filter.** The mean gradient drifts as a random walk with variance kappa r per step and is observed with noise r. In
   units of r the filter's variance P is one number for all weights (:func:`filter_gain`).
   A tile whose innovation is far larger than its noise is an outlier and moves the filter less (:func:`trust`).
2. **Noise.** Innovations have the variance r (1 + P-): their running mean gives r (:func:`noise_weight`).
3. **Precision.** The optimum drifts by N(0, (tau sigma)^2) per step, each gradient brings information proportional to r: the
   stationary precision is proportional to s / (tau sigma). The square root of Adam comes from here.
4. **Trust region.** A step may be as long as the drift that the model assumes, in nats, over all tensors together
   (:func:`reach`).
5. **Curvature.** Innovations along the last step tell one curvature for all weights (:func:`follow_curvature`); a step goes no
   further than the quadratic model expects the loss to fall (:func:`furthest`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SURE = 1e-5  # sqrt(r) of a turned entry is at least this part of |M|: float32 gradients are no more exact; M / s stays in range
SURE_APART = 0.1  # the same of an entry that does not turn: one constant gradient must not take the region from all others
WINDOW = 3  # until b2 takes over, noise averages over about the last third of all steps: first gradients are large
FREEDOM = 16.0  # nu, degrees of freedom of Student's t: how heavy the tails of innovations are expected to be
FLOOR = 1e-3  # of a tile's mean s: turned, most directions of a first gradient hold rounding errors and nothing else
LEAST_NOISE = 1e-3  # of a squared innovation
MOST_PULL = 0.35  # of a step's length that the anchor takes back: enough for noise at the largest lr that counts
FALL = 10.0  # how far noise may fall below its level before steps get shorter, and a pull below that of noise
GOLDEN = 0.6180339887498949  # golden ratio less 1: its multiples are far from simple fractions
LEAST_SHARE = 0.01  # of the pull that counts as signal: a step is never shorter than the rule makes it at this share


def filter_gain(b1: float, t: Any) -> Any:
    r"""Kalman gain of step ``t`` = 1, 2, ... (an int, or a tensor) of a filter that settles at the gain :math:`K = 1 - b_1`.

    In units of the noise the filter reads :math:`P^- = P + \kappa`, :math:`K_t = P^- / (1 + P^-)`, :math:`P = K_t`, with
    :math:`\kappa = K^2 / (1 - K)` and :math:`P = \infty` before the first step. The map is a linear fraction with the fixed
    points :math:`K` and :math:`-K / b_1`, so its iterates have the closed form

    .. math:: K_t = (1 - b_1) \frac{1 + b_1^{2t - 1}}{1 - b_1^{2t}} .

    The first gain is 1: no bias to correct.

    Example:
        >>> [round(filter_gain(0.9, t), 4) for t in (1, 2, 3, 1000)]
        [1.0, 0.5028, 0.3394, 0.1]
        >>> filter_gain(0.0, 5)
        1.0
    """
    return (1 - b1) * (1 + b1 ** (2 * t - 1)) / (1 - b1 ** (2 * t))


def noise_level(gain: Any) -> Any:
    r"""Variance of ``M`` in units of r if the gradient is nothing but noise: :math:`K / (2 - K)`, 1 at the first step.

    Example:
        >>> round(noise_level(0.1), 4)
        0.0526
    """
    return gain / (2 - gain)


def noise_weight(b2: float, t: Any) -> Any:
    r"""Weight of the newest innovation in the running mean ``r``: :math:`3 / (t + 2)`, later :math:`1 - b_2`; 1 at first.

    A plain mean, 1 / t, would remember the first gradients too long. They are large, and overrated noise shortens steps.

    Example:
        >>> noise_weight(0.995, 1), noise_weight(0.995, 4), round(noise_weight(0.995, 10_000), 6)
        (1.0, 0.5, 0.005)
    """
    recent = WINDOW / (t + WINDOW - 1)
    return recent.clamp(min=1 - b2) if isinstance(t, Tensor) else max(recent, 1 - b2)


def factor_weight(beta: float, t: int, steps: int = 1) -> float:
    """Weight of the newest innovation, which stands for ``steps`` steps, in a factor's running mean; 1 at the first step.

    Example:
        >>> factor_weight(0.5, 1), round(factor_weight(0.5, 2), 4), factor_weight(0.5, 2, 2)
        (1.0, 0.6667, 1.0)
    """
    return (1 - beta**steps) / (1 - beta**t)


def least_noise(M: Tensor, sure: float) -> Tensor:
    r"""Least value of ``r``. A noiseless gradient has none; M / s stays finite without setting a scale.

    Example:
        >>> least_noise(torch.tensor([1.0, -2.0]), 0.5)
        tensor([0.2500, 1.0000])
    """
    return (sure * M).square()


def noise_scale(r: Tensor, eps: float) -> Tensor:
    r"""``s``, the standard deviation of a gradient entry, in gradient units: :math:`\sqrt r + \epsilon`.

    Example:
        >>> noise_scale(torch.tensor([4.0, 0.0]), 1.0)
        tensor([3., 1.])
    """
    return r.sqrt().add_(eps)


def least_scale(dtype: torch.dtype) -> float:
    """Least value of ``s``: the square of what is smaller is no normal number, and ``r`` knows little or nothing of it.

    Example:
        >>> least_scale(torch.float32) == 2.0**-63
        True
    """
    return float(torch.finfo(dtype).tiny ** 0.5)


def trust(surprise: Any) -> Any:
    r"""Weight of an innovation in the filter, :math:`\min(1, (\nu + 1) / (\nu + z^2))`: its noise is Student's t.

    ``surprise`` is :math:`z^2 = (1 - K) \sum E^2 / s \,\big/ \sum s` over a tile, or over a tensor without tiles, 1 on average
    if the noise is right. At a small batch size, with little left to learn, the gradient of one misclassified example can be a
    hundred times as long as usual. A Gaussian filter would carry it through the next ten steps as if it were signal.

    Example:
        >>> trust(0.5), trust(1.0), trust(324.0)
        (1.0, 1.0, 0.05)
    """
    weight = (FREEDOM + 1) / (FREEDOM + surprise)
    return weight.clamp(max=1.0) if isinstance(weight, Tensor) else min(1.0, weight)


def innovation_share(gain: Any, t: Any) -> Any:
    r"""Which part of a squared innovation is noise: :math:`1 / (1 + P^-) = 1 - K_t`; all of it at the first step.

    With b1 = 0 the gain is 1, and the model would attribute every change to drift; at least a thousandth stays noise.

    Example:
        >>> innovation_share(1.0, 1), innovation_share(0.25, 7), innovation_share(1.0, 7)
        (1.0, 0.75, 0.001)
    """
    if isinstance(t, Tensor):
        return torch.where(t == 1, 1.0, (1 - gain).clamp(min=LEAST_NOISE))
    return 1.0 if t == 1 else max(1 - gain, LEAST_NOISE)


def reach(B: Tensor, A: Tensor, N: Tensor, exponent: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""How far to go: ``k`` of :math:`\Delta = -\tau\sigma k M / s`, the share phi, and the part of the drift's KL to spend.

    With :math:`B = \sum\sigma s`, :math:`A = \sum\sigma M^2 / s` and :math:`N = \sum\sigma s\,K / (2 - K)` over all weights,
    the step's KL is :math:`\tfrac12\tau k^2 A`, and that of one step of the drift is :math:`\tfrac12\tau B`.

    N is what A would be if the gradient were nothing but noise. So :math:`\varphi = 1 - N / A`, at least 0.01, is the share
    of the pull that is signal, as James and Stein would estimate it. The step may spend :math:`\varphi^{2\gamma}` of the
    drift's KL:

    .. math:: k = \varphi^\gamma \sqrt{B / \max(A, N)} .

    Where A < N the gradient pulls less than noise would, and the bound is not reached.

    Example:
        >>> four, one, none = (torch.tensor(x) for x in (4.0, 1.0, 0.0))
        >>> reach(four, one, none, 0.5)
        (tensor(2.), tensor(1.), tensor(1.))
        >>> reach(four, one, torch.tensor(0.75), 0.5)  # three quarters of the pull are noise: half the length
        (tensor(1.), tensor(0.2500), tensor(0.2500))
        >>> reach(none, none, none, 0.5)[0]  # nothing pulls
        tensor(0.)
    """
    phi = torch.where(A > 0, 1 - N / A, 0.0).clamp(LEAST_SHARE, 1.0)
    part = phi ** (2 * exponent)
    return torch.where(A > 0, (part * B / torch.maximum(A, N)).sqrt(), 0.0), phi, part


def follow_curvature(curvature: Any, fell: Any, pulled: Any, weight: float) -> tuple[Any, Any]:
    r"""Numerator and denominator of the curvature :math:`\zeta = \sum E d \,/ \sum (s / \sigma) d^2` after one more innovation.

    The Hessian of the model is zeta times the precision :math:`s / (\tau\sigma)`, with one number zeta for all weights: a step
    changes the gradient in proportion, which the next innovation shows. Steps are in units of tau, as if lr had
    been the same all the time: :math:`d = -k u \sigma M / s`, with the last step's k and u = lr of the tensor / largest lr. So
    a step is proportional to lr whatever lr was before.

    Args:
        curvature: numerator, denominator, and k of the last step (0: there was none).
        fell: :math:`\sum u \sigma M E / s`.
        pulled: :math:`\sum u^2 \sigma M^2 / s`.
        weight: of the newest innovation in both sums.

    Example:
        >>> follow_curvature((0.0, 0.0, 0.1), -2.0, 4.0, 0.5)  # the step took half of the pull away: zeta = 5
        (0.1, 0.020000000000000004)
    """
    numerator, denominator, last = curvature
    return (
        numerator + weight * (-last * fell - numerator),
        denominator + weight * (last * last * pulled - denominator),
    )


def furthest(numerator: Tensor, denominator: Tensor) -> Tensor:
    r"""The largest ``k``: twice that of the optimum of the quadratic model, :math:`2 / \zeta`.

    Along the step the model's loss is :math:`-k A + \tfrac12 \zeta k^2 A`, which is negative up to there. Infinite if no
    curvature is known, or if it is negative.

    Example:
        >>> furthest(torch.tensor([0.25, -0.25]), torch.tensor(0.5))
        tensor([4., inf])
    """
    known = (numerator > 0) & (denominator > 0)
    return torch.where(known, 2 * denominator / torch.where(known, numerator, 1.0), float("inf"))


def follow_level(level: Any, steps: Any, now: Any) -> tuple[Any, Any]:
    r"""The level of the noise over about the last two thirds of all steps, and their number, after one more.

    ``now`` is :math:`\sum\sigma s \,/ \sum\sigma`, the mean noise of a weight.

    Example:
        >>> follow_level(0.0, 0.0, 4.0), follow_level(4.0, 1.0, 0.0)
        ((4.0, 1.0), (1.0, 2.0))
    """
    return level + WINDOW / (steps + WINDOW) * (now - level), steps + 1


def mark_weight(place: Any) -> Any:
    """What a parameter's entries count in the mark of those that take part; ``place``: among all, from 1.

    No two are in a simple ratio, so that neither are marks of different parameters equal. Multiples of 2^-20: sums are exact.

    Example:
        >>> [round(mark_weight(place), 6) for place in (1, 2, 3)]
        [1.618033, 1.236068, 1.854101]
    """
    return 1 + place * GOLDEN % 1.0 * 2.0**20 // 1 / 2.0**20


def calm(level: Tensor, now: Tensor) -> Tensor:
    r"""The factor on a step's length, :math:`\min(1, 10\,\mathrm{now} / \mathrm{level})`: 1 unless noise has all but vanished.

    What was learned does not become uncertain because gradients vanish: a precision that followed them down at once would let
    the weights of a network that has fitted its data wander, until they lose it.

    Example:
        >>> calm(torch.tensor(1.0), torch.tensor([0.5, 0.05]))
        tensor([1.0000, 0.5000])
    """
    return torch.where(level > 0, FALL * now / torch.where(level > 0, level, 1.0), 1.0).clamp(max=1.0)


def anchor(tau: Any, spent: Tensor, phi: Tensor, gain: Any, stir: Any = 1.0) -> Tensor:
    r"""The factor that a step shrinks a tensor by: :math:`\sqrt{1 - \varsigma\tau^2 c\,(\varphi + (1 - \varphi) (2 - K) / K)}`.

    An optimum that drifts as a plain random walk has no size: steps relative to the weights' size would make them grow without
    bound. An Ornstein-Uhlenbeck drift of stationary variance :math:`\sigma^2` pulls the mean in by as much as it spreads,
    :math:`\sqrt{1 - \tau^2 c}` where a step spends the part c of the drift's KL. That balances independent steps. Steps
    along filtered noise are not independent: they add up over the filter's memory, and the weights' square grows by
    :math:`\tau^2 c (2 - K) / K` per step, so the share of noise is pulled in by that much. The anchor takes at most 0.35 of
    the step's length, :math:`0.35 \tau \sqrt c`, so that a clear gradient is stronger. A matrix shrinks towards 0, a
    vector towards where it started. ``stir`` is :math:`\varsigma = \min(1, 10 A / N)` of the tensor alone: one whose gradient
    is 0 does not move, and does not shrink.

    Example:
        >>> signal, noise = torch.tensor(1.0), torch.tensor(0.0)
        >>> anchor(torch.tensor(0.1), torch.tensor(1.0), signal, 0.1), anchor(torch.tensor(0.01), torch.tensor(1.0), noise, 0.1)
        (tensor(0.9950), tensor(0.9990))
    """
    reached = spent.sqrt() * tau
    grown = torch.minimum(reached * reached * (phi + (1 - phi) / noise_level(gain)), 2 * MOST_PULL * reached) * stir
    kept: Tensor = (1 - grown).clamp(min=0.0)
    return kept.sqrt()
