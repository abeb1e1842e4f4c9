r"""The dual problem: the multiplier eta at which the step just reaches the bound (``obj:dual``).

``eq:dual_der`` is :math:`g'(\eta) = C(\eta) - B`, C falls with eta, so the answer is the root of C = B, or eta = 0 when the
surrogate's optimum already lies inside. Each evaluation of C is one pass over memory; the first comes free with the
filter's update, at an eta that must be named beforehand (:attr:`Dual.trial`).

* :func:`newton`, ours: exact, and in a steady run one update without any further pass.
* :func:`newton_fixed`: the same with a fixed number of updates and no branch, for accelerators.
* :func:`bisection`: the published rule. It stops at a bracket of 0.5 *absolute* and so leaves small eta unsolved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar

TOLERANCE = 5e-4  # |KL / bound - 1| of an active step stays under 1e-3: half of it is spent aiming low, half on the landing
MOST_EVALUATIONS = 60  # newton needs 1 to 8; only an unguarded surrogate (curvature_floor=None) can come here
SUM_ERROR = 2e-6  # relative; the C++ kernel adds up chunks of 256 entries in float32, everything else is float64
DEVICE_UPDATES = 3  # of newton_fixed; `move` scales the rest away, so more would only refine the direction
PUBLISHED_CEILING = 10_000.0
PUBLISHED_BRACKET = 0.5
PUBLISHED_SLACK = 0.1


class Evaluation(NamedTuple):
    """C and its derivatives at ``eta``. At ``eta = inf`` C holds the limit of eta^2 C, the others nothing."""

    eta: Any
    C: Any
    dC: Any
    ddC: Any


class DualSolution(NamedTuple):
    """How the dual ended: the multiplier, the evaluations of C it took, and whether the bound holds the step back.

    On a device ``scale`` shortens the step to the bound, and ``solved`` is False where C left the range.
    """

    eta: Any
    evaluations: int
    active: Any
    scale: Scalar = 1.0
    solved: Any = True


Evaluate = Callable[[Any], Evaluation]


class Dual(NamedTuple):
    """The dual of one step, on the host (floats) or on a device (0-d tensors, and no branch on them)."""

    rule: str  # "newton" or "bisection"
    fixed: Any  # a fixed multiplier, or None
    previous: Any  # the multiplier of the last step; inf before the first

    @property
    def trial(self) -> Any:
        """The eta at which the first, free evaluation is wanted."""
        if self.fixed is not None:
            return self.fixed
        if self.rule == "bisection":
            lower, upper = _published_bracket(self.previous)
            return 0.5 * (lower + upper)
        return self.previous

    def solve(self, first: Evaluation, bound: Any, evaluate: Evaluate) -> DualSolution:
        """The root of C = ``bound``, or 0 where the optimum lies inside, from the evaluation at :attr:`trial`."""
        if isinstance(bound, Tensor):
            return self._solve_on_device(first, bound, evaluate)
        if self.fixed is not None:
            return DualSolution(self.fixed, 1, self.fixed > 0)
        if self.rule == "bisection":
            return bisection(self.previous, first, bound, evaluate)
        return newton(first, bound, evaluate)

    def _solve_on_device(self, first: Evaluation, bound: Tensor, evaluate: Evaluate) -> DualSolution:
        if self.fixed is not None:
            return DualSolution(first.eta, 1, first.eta > 0, torch.ones_like(bound), first.C.isfinite())
        if self.rule == "bisection":
            return bisection_fixed(self.previous, first, bound, evaluate)
        return newton_fixed(first, bound, evaluate)


def newton(first: Evaluation, bound: float, evaluate: Evaluate) -> DualSolution:
    r"""Newton's method on the secular form :math:`1/\sqrt{C(\eta)} = 1/\sqrt{B}`.

    .. math:: \eta \leftarrow \eta + \frac{2C}{-C'} \left(\sqrt{C/B} - 1\right)

    :math:`1/\sqrt C` is increasing and concave while every denominator is positive, so every iterate lands at
    :math:`C \ge B`, left of the root, and the sequence is monotone from there: no bracket is needed. We aim at
    :math:`B (1 - 5\cdot10^{-4})` and stop without another evaluation once :func:`landing_bound` proves the landing good enough.

    Example:
        >>> curve = lambda eta: Evaluation(eta, 8 / (1 + eta) ** 2, -16 / (1 + eta) ** 3, 48 / (1 + eta) ** 4)
        >>> solution = newton(curve(0.9), 2.0, curve)  # the root of 8 / (1 + eta)^2 = 2 is eta = 1
        >>> round(solution.eta, 3), solution.evaluations, solution.active
        (1.001, 1, True)
        >>> newton(curve(0.9), 9.0, curve)[:3]  # the optimum lies inside
        (0.0, 2, False)
    """
    at, evaluations = first, 1
    blind = -1.0  # the largest eta at which C left the range; it lies left of the root
    if not math.isfinite(at.C):
        at, blind, evaluations = evaluate(math.inf), first.eta, 2
    if math.isinf(at.eta):  # C <= limit / eta^2, so this start lies right of the root
        if at.C == 0:
            return DualSolution(0.0, evaluations, False)
        at, evaluations = evaluate(math.sqrt(at.C / bound)), evaluations + 1
    while evaluations < MOST_EVALUATIONS:
        if at.C == 0 or (at.eta == 0 and bound >= at.C):
            return DualSolution(0.0, evaluations, False)
        eta = max(_newton_update(at, bound * (1 - TOLERANCE)), 0.0)
        if eta > 0 and landing_bound(at, eta) <= bound * (1 + TOLERANCE):
            return DualSolution(eta, evaluations, True)
        if eta <= blind:
            eta = math.sqrt(max(blind, 1e-12 * at.eta) * at.eta)
        trial = evaluate(eta)
        evaluations += 1
        if math.isfinite(trial.C):
            at = trial
        else:
            blind = eta
    return DualSolution(at.eta, evaluations, at.eta > 0)


def _newton_update(at: Evaluation, target: float) -> float:
    if not at.dC < 0:  # only without a curvature floor
        return float(max(2 * at.eta, 1.0))
    return float(at.eta + 2 * at.C / -at.dC * (math.sqrt(at.C / target) - 1))


def landing_bound(at: Evaluation, eta: float) -> float:
    r"""An upper bound on :math:`C(\eta)` from C, C' and C'' at another place, which saves most probes.

    With :math:`t = \eta - \eta_0` and u = prec / den at :math:`\eta_0`, :math:`C(\eta) / C(\eta_0)` is the mean of
    :math:`(1 + t u)^{-2}` under weights prec d^2; :math:`m_1 = -C'/2C` and :math:`m_2 = C''/6C` are the mean and
    the second moment of u. A Taylor expansion around :math:`m_1` with the remainder
    bounded by the second derivative at the far end, :math:`1 + t u \ge 1 + \min(t, 0) / \eta_0`, gives

    .. math:: C(\eta) \le C(\eta_0) \left[(1 + t m_1)^{-2} + 3 t^2 (m_2 - m_1^2) (1 + \min(t, 0)/\eta_0)^{-4}\right].

    Example:
        >>> round(landing_bound(Evaluation(1.0, 2.0, -2.0, 3.0), 3.0), 4)  # C = 8 / (1 + eta)^2: the bound is sharp
        0.5
    """
    C: float = at.C
    t = eta - at.eta
    if t == 0:
        return C
    m_1 = -at.dC / (2 * C)
    m_2 = at.ddC / (6 * C)
    variance = max(m_2 - m_1 * m_1, SUM_ERROR * m_2)  # never below the rounding of the difference
    nearest = 1 + min(t, 0) / at.eta if at.eta > 0 else 1.0
    return float(C * ((1 + t * m_1) ** -2 + 3 * t * t * variance * nearest**-4))


def newton_fixed(first: Evaluation, bound: Tensor, evaluate: Evaluate) -> DualSolution:
    """:func:`newton` without a branch: :data:`DEVICE_UPDATES` further evaluations, the last one at the eta it returns.

    Since every update lands at C >= (1 - 5e-4) B, scaling the step by min(1, sqrt(B / C)) puts the KL within the tolerance of
    an active bound whatever the number of updates.
    """
    limit = first.eta.isinf()
    eta = torch.where(limit, torch.sqrt(first.C / bound), newton_update_fixed(first, bound))
    at = evaluate(eta)
    for _ in range(DEVICE_UPDATES - 1):
        at = evaluate(newton_update_fixed(at, bound))
    scale = torch.where(bound < at.C, torch.sqrt(bound / at.C), torch.ones_like(bound))
    return DualSolution(at.eta, 1 + DEVICE_UPDATES, at.eta > 0, scale, at.C.isfinite())


def newton_update_fixed(at: Evaluation, bound: Tensor) -> Tensor:
    """One update of :func:`newton_fixed`; 0 where C is 0 or the update would be negative, far right where C overflowed."""
    eta, C, dC, _ = at
    moved = eta + 2 * C / -dC * (torch.sqrt(C / (bound * (1 - TOLERANCE))) - 1)
    moved = torch.where(C > 0, moved, torch.zeros_like(moved)).clamp(min=0)
    return torch.where(C.isfinite(), moved, 1e6 * (eta + 1))


def bisection(previous: float, first: Evaluation, bound: float, evaluate: Evaluate) -> DualSolution:
    """The published rule, to the letter: kept for comparison, not recommended.

    A round halves the bracket first, and then may stop because C at the middle was good enough: the answer is the middle of
    what is left, not the place where C was evaluated. Below eta = 0.1875 the bracket is narrower than 0.5 from the start: the
    answer is 5/3 of the last one, without evaluating C there.

    Example:
        >>> unused = Evaluation(0.15, 1.0, -1.0, 1.0)
        >>> round(bisection(0.09, unused, 1.0, lambda eta: unused).eta, 12)
        0.15
    """
    lower, upper = _published_bracket(previous)
    at, evaluations = first, 1
    while upper - lower >= PUBLISHED_BRACKET:
        middle = 0.5 * (lower + upper)
        if at.eta != middle:
            at = evaluate(middle)
            evaluations += 1
        if bound < at.C:
            lower = middle
        else:
            upper = middle
        if abs(at.C - bound) < PUBLISHED_SLACK * bound:  # the bracket is halved before the test, as published
            break
    eta = 0.5 * (lower + upper)
    return DualSolution(eta, evaluations, eta > 0)


def _published_bracket(previous: Any) -> tuple[Any, Any]:
    if isinstance(previous, Tensor):
        fresh = previous.isinf()
        lower = torch.where(fresh, 0.0, previous / 3)
        return lower, torch.where(fresh, PUBLISHED_CEILING, (3 * previous).clamp(max=PUBLISHED_CEILING))
    if math.isinf(previous):
        return 0.0, PUBLISHED_CEILING
    return previous / 3, min(3 * previous, PUBLISHED_CEILING)


PUBLISHED_MOST = 15  # halvings from 10,000 to under 0.5


def bisection_fixed(previous: Tensor, first: Evaluation, bound: Tensor, evaluate: Evaluate) -> DualSolution:
    """:func:`bisection` without a branch: the halvings that are one too many change nothing."""
    lower, upper = _published_bracket(previous)
    done = upper - lower < PUBLISHED_BRACKET
    for i in range(PUBLISHED_MOST):
        middle = 0.5 * (lower + upper)
        C = first.C if i == 0 else evaluate(middle).C
        left = bound < C
        lower, upper = torch.where(left & ~done, middle, lower), torch.where(left | done, upper, middle)
        done = done | ((C - bound).abs() < PUBLISHED_SLACK * bound) | (upper - lower < PUBLISHED_BRACKET)
    eta = 0.5 * (lower + upper)
    return DualSolution(eta, PUBLISHED_MOST, eta > 0, torch.ones_like(bound), eta.isfinite())
