r"""How certain a comparison is: pure functions over the numbers of a few seeds.

Three to ten seeds are few, and every choice here is made for that:

* **Interval**: Student's t (:meth:`Estimate.interval`). It assumes normal values, which a handful cannot show, but its width is
  honest about the handful: 4.3 standard errors either way for three seeds, not two.
* **Test**: runs of one seed share initial weights and batches, so differences are taken seed by seed: a paired t-test
  (:func:`paired_t_test`). A diverged run has no number; pairs with one are won or lost, and :func:`sign_test` counts them.
* **What n seeds can carry**: whatever the distribution, n differences have one sign by chance with 2^(1-n). A p below that
  counts as that (:func:`smallest_p`): 0.25 for three seeds, 0.06 for five, 0.002 for ten. A smaller one would come from the
  assumption of normality alone. Corrections come after. Where even the smallest could not be significant then, no p is given:
  one comparison takes six seeds, four take eight (:func:`seeds_for`). The interval needs no such number.
* **Several comparisons**: :func:`holm` over those that are made, which are fixed beforehand: each optimizer against one that
  was named, or all pairs. "The best of these means against the others" is not fixed beforehand: picking it and testing
  k - 1 times finds differences where there are none in 6 to 11 % of cases at a level of 5 %, more often the more
  optimizers are compared (tests/lab/test_evidence.py).
* **Time to a target**: some runs never arrive, some were stopped early. The median of a Kaplan-Meier curve takes both as
  what they are (:func:`median_arrival`); a mean over those that arrived would not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]
LEVEL = 0.95  # of every interval


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds and its standard error, s / sqrt(n). One seed has no spread: None.

    Example:
        >>> Estimate.of([1.0, 3.0])
        Estimate(mean=2.0, error=1.0, n=2)
        >>> Estimate.of([1.0])
        Estimate(mean=1.0, error=None, n=1)
    """

    mean: float
    error: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        n = len(values)
        with np.errstate(invalid="ignore"):  # a value that is not finite makes both NaN, which is the truth
            error = float(np.std(values, ddof=1)) / n**0.5 if n > 1 else None
            return cls(float(np.mean(values)), error, n)

    @property
    def doubled_error(self) -> float | None:
        """2 s / sqrt(n), the paper's measure of spread: a 95 % interval if n were large."""
        return None if self.error is None else 2 * self.error

    @property
    def half_width(self) -> float | None:
        """Of the 95 % t-interval around the mean.

        Example:
            >>> round(Estimate.of([1.0, 2.0, 3.0]).half_width, 4)  # 4.3027 / sqrt(3)
            2.4841
        """
        return None if self.error is None else float(stdtrit(self.n - 1, 0.5 + LEVEL / 2)) * self.error

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % t-interval of the mean; None for one seed."""
        width = self.half_width
        return None if width is None else (self.mean - width, self.mean + width)


def smallest_p(n: int) -> float:
    """What n paired differences can carry: how often n fair coins agree.

    Example:
        >>> smallest_p(3), smallest_p(5)
        (0.25, 0.0625)
    """
    return float(2.0 ** (1 - n))


def seeds_for(level: float) -> int:
    """How many seeds it takes until a p at or below ``level`` can be reported.

    Example:
        >>> seeds_for(0.05), seeds_for(0.01)
        (6, 8)
    """
    return next(n for n in range(1, 1100) if smallest_p(n) <= level)


def paired_t_test(differences: Sequence[float]) -> float:
    """Two-sided p of "the mean of the paired differences is zero": Student's t with n - 1 degrees of freedom.

    Differences without any spread, as accuracies on few test images can give, leave t without a scale. p is then
    :func:`smallest_p`.

    Example:
        >>> round(paired_t_test([1.0, 2.0, 3.0]), 4)  # t = 2 sqrt(3)
        0.0742
        >>> paired_t_test([1.0, 1.0, 1.0]), paired_t_test([0.0, 0.0])
        (0.25, 1.0)
    """
    d = np.asarray(differences, dtype=np.float64)
    n, mean, error = len(d), float(np.mean(d)), float(np.std(d, ddof=1)) / len(d) ** 0.5
    if error <= 1e-12 * float(np.max(np.abs(d))):  # equal but for rounding
        return 1.0 if mean == 0 else smallest_p(n)
    return float(2 * stdtr(n - 1, -abs(mean) / error))


def sign_test(won: int, lost: int) -> float:
    """Two-sided p of "either is as likely to be ahead": exact, ties left out.

    Example:
        >>> sign_test(0, 3), sign_test(4, 1), sign_test(2, 2), sign_test(0, 0)
        (0.25, 0.375, 1.0, 1.0)
    """
    n = won + lost
    tail = sum(math.comb(n, k) for k in range(min(won, lost) + 1))
    return float(min(1.0, 2 * tail / 2**n))


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


def first_reached(values: Sequence[float | None], target: float, higher: bool = True) -> int | None:
    """Index of the first value at the target or better. None stands for a value that was not finite.

    Example:
        >>> first_reached([0.2, None, 0.7, 0.6], 0.6), first_reached([0.2], 0.6), first_reached([2.0, 1.5], 1.6, higher=False)
        (2, None, 1)
    """
    sign = 1 if higher else -1
    return next((i for i, value in enumerate(values) if value is not None and sign * value >= sign * target), None)


def median_arrival(arrivals: Sequence[Arrival]) -> float | None:
    """The time by which half of the runs arrive, by Kaplan and Meier; None unless more than half are known to.

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
