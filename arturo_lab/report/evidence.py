r"""How sure a comparison is: pure functions over the numbers of a few seeds.

Three to ten seeds are few, and every choice here is made for that:

* **Spread**: the paper's doubled standard error (:class:`Estimate`).
* **Interval**: an exact bootstrap, expanded for small samples (:func:`bootstrap_interval`). BCa would estimate its bias and
  acceleration from the same handful of numbers, which adds noise and no coverage.
* **Test**: runs of one seed share initial weights and batches, so differences are taken seed by seed: a paired t-test
  (:func:`paired_t_test`). It takes them for normal, which a handful cannot show. The exact test that takes nothing for granted,
  by flipping signs, cannot go below 2^(1-n): with three seeds and four comparisons it says 1.00 whatever was measured.
  Several optimizers are compared with one: :func:`holm`.
* **Time to a target**: some runs never arrive, some were stopped early. The median of a Kaplan-Meier curve takes both as
  what they are (:func:`median_arrival`); a mean over those that arrived would not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtr, stdtrit  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]
EXACT_BOOTSTRAP = 10  # up to so many values every resample is counted: 92,378 of them for ten
DRAWS = 100_000  # beyond, so many are drawn, from a fixed seed: the same numbers give the same answer


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its doubled standard error, 2 s / sqrt(n), the paper's measure. One seed has no spread: None.

    Example:
        >>> Estimate.of([1.0, 3.0])
        Estimate(mean=2.0, doubled_error=2.0)
        >>> Estimate.of([1.0])
        Estimate(mean=1.0, doubled_error=None)
    """

    mean: float
    doubled_error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        n = len(values)
        with np.errstate(invalid="ignore"):  # a value that is not finite makes both NaN, which is the truth
            error = 2 * float(np.std(values, ddof=1)) / n**0.5 if n > 1 else None
            return cls(float(np.mean(values)), error)


def bootstrap_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """An interval for the mean from the distribution of resampled means; None for a single value.

    The plain percentile interval is too narrow for few values: it uses s sqrt((n-1)/n) for s and normal for t quantiles.
    Both are undone by reading the distribution further out (Hesterberg 2015, "expanded percentile"), at the tails
    Phi(-sqrt(n / (n-1)) t) with Student's t of n - 1 degrees of freedom. Up to ten values the distribution is exact.

    No resampled mean lies beyond the smallest or the largest value. Whatever the level, an interval of n values
    therefore covers the mean of a symmetric distribution with at most 1 - 2^(1-n): 75 % for three seeds, 94 % for five.

    Example:
        >>> bootstrap_interval([1.0, 2.0, 6.0])  # three values: from the smallest to the largest
        (1.0, 6.0)
        >>> low, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        >>> round(low, 3), round(high, 3)
        (2.5, 6.5)
    """
    n = len(values)
    if n < 2:
        return None
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if n <= EXACT_BOOTSTRAP:
        counts, weights = resamples(n)
        means = counts @ sample / n
    else:
        draws = np.random.default_rng(0).integers(n, size=(DRAWS, n))
        means, weights = sample[draws].mean(axis=1), np.full(DRAWS, 1 / DRAWS)
    tail = expanded_tail(n, level)
    return lower_quantile(means, weights, tail), -lower_quantile(-means, weights, tail)


def expanded_tail(n: int, level: float) -> float:
    """The share of the bootstrap distribution to leave out at either end."""
    t = stdtrit(n - 1, 0.5 + level / 2)
    return float(ndtr(-math.sqrt(n / (n - 1)) * t))


@lru_cache
def resamples(n: int) -> tuple[Array, Array]:
    """How often each of n values is drawn in n draws with replacement: every way, and its probability.

    Example:
        >>> counts, weights = resamples(2)
        >>> counts.tolist(), weights.tolist()
        ([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]], [0.25, 0.5, 0.25])
    """
    bars = np.array(list(itertools.combinations(range(2 * n - 1), n - 1))).reshape(-1, n - 1)  # stars between bars
    edges = np.hstack([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), 2 * n - 1)])
    counts = np.diff(edges, axis=1) - 1
    factorials = np.array([math.factorial(k) for k in range(n + 1)], dtype=np.float64)
    weights = factorials[n] / factorials[counts].prod(axis=1) / float(n) ** n
    return counts.astype(np.float64), weights


def lower_quantile(values: Array, weights: Array, share: float) -> float:
    """The smallest value with at least ``share`` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), share)
    return float(values[order][min(int(reached), len(values) - 1)])


def paired_t_test(differences: Sequence[float]) -> float:
    """Two-sided p of "the mean of the paired differences is zero": Student's t with n - 1 degrees of freedom.

    Differences without any spread, as accuracies on few test images can give, leave t without a scale. p is then 2^(1-n), how
    often n fair coins agree.

    Example:
        >>> round(paired_t_test([1.0, 2.0, 3.0]), 4)  # t = 2 sqrt(3)
        0.0742
        >>> paired_t_test([1.0, 1.0, 1.0]), paired_t_test([0.0, 0.0])
        (0.25, 1.0)
    """
    d = np.asarray(differences, dtype=np.float64)
    n, mean, error = len(d), float(np.mean(d)), float(np.std(d, ddof=1)) / len(d) ** 0.5
    if error <= 1e-12 * float(np.max(np.abs(d))):  # equal but for rounding
        return 1.0 if mean == 0 else float(2.0 ** (1 - n))
    return float(2 * stdtr(n - 1, -abs(mean) / error))


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, raised so that the chance of any false finding among them stays below the level (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


class Arrival(NamedTuple):
    """When a run reached a target, or until when it was seen without. Never, for one that diverged: (inf, False)."""

    time: float
    reached: bool


def first_reached(values: Sequence[float | None], target: float) -> int | None:
    """Index of the first value at or above the target. None stands for a value that was not finite.

    Example:
        >>> first_reached([0.2, None, 0.7, 0.6], 0.6), first_reached([0.2], 0.6)
        (2, None)
    """
    return next((i for i, value in enumerate(values) if value is not None and value >= target), None)


def median_arrival(arrivals: Sequence[Arrival]) -> float | None:
    """The time by which half of the runs arrive, by Kaplan and Meier; None if fewer than half are known to.

    Without censoring it is the ordinary median.

    Example:
        >>> median_arrival([Arrival(3, True), Arrival(5, True), Arrival(9, True)])
        5.0
        >>> median_arrival([Arrival(3, True), Arrival(5, True), Arrival(25, False)])
        5.0
        >>> median_arrival([Arrival(3, True), Arrival(25, False), Arrival(math.inf, False)]) is None
        True
    """
    waiting, at_half = Fraction(1), None
    for time in sorted({arrival.time for arrival in arrivals if arrival.reached}):
        if at_half is not None:
            return (at_half + time) / 2
        at_risk = sum(arrival.time >= time for arrival in arrivals)
        arriving = sum(arrival.reached and arrival.time == time for arrival in arrivals)
        waiting *= 1 - Fraction(arriving, at_risk)
        if waiting < Fraction(1, 2):
            return float(time)
        if waiting == Fraction(1, 2):
            at_half = float(time)
    return None
