"""The dual's solvers on curves C(eta) = 1/2 sum prec num^2 / (A + eta prec)^2 of random problems."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arturo import reference
from arturo.core import dual


class Curve:
    """C and its derivatives in float64; counts its evaluations."""

    def __init__(self, seed: int, spread: float, n: int = 50) -> None:
        random = np.random.default_rng(seed)
        self.num, self.A, self.prec = (10 ** (spread * random.standard_normal(n)) for _ in range(3))
        self.count = 0

    def __call__(self, eta: float) -> dual.Evaluation:
        self.count += 1
        prec = self.prec
        if math.isinf(eta):
            return dual.Evaluation(eta, float(0.5 * np.sum(self.num**2 / prec)), 0.0, 0.0)
        den = self.A + eta * prec
        C = 0.5 * np.sum(prec * self.num**2 / den**2)
        dC = -np.sum(prec**2 * self.num**2 / den**3)
        ddC = 3 * np.sum(prec**3 * self.num**2 / den**4)
        return dual.Evaluation(eta, float(C), float(dC), float(ddC))


problems = given(
    seed=st.integers(0, 2**31), spread=st.floats(0.0, 3.0), log_bound=st.floats(-14, 14), log_eta=st.none() | st.floats(-14, 14)
)


@settings(max_examples=400, deadline=None)
@problems
def test_newton_is_exact(seed, spread, log_bound, log_eta):
    """|C / B - 1| <= 1e-3 when active, eta = 0 exactly when C(0) <= B, from any start, in few evaluations."""
    curve = Curve(seed, spread)
    inside = curve(0.0).C
    bound = inside * 10**log_bound
    assume(not 0.999 < bound / inside < 1.001)
    start = math.inf if log_eta is None else 10**log_eta
    solution = dual.newton(curve(start), bound, curve)
    if inside <= bound:
        assert solution.eta == 0.0
        assert not solution.active
    else:
        assert solution.active
        assert abs(curve(solution.eta).C / bound - 1) <= 1e-3
    assert solution.evaluations <= 30


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.floats(0.0, 3.0), log_eta=st.floats(-8, 8), log_ratio=st.floats(-3, 3))
def test_landing_bound_is_a_bound(seed, spread, log_eta, log_ratio):
    curve = Curve(seed, spread)
    at, eta = curve(10**log_eta), 10 ** (log_eta + log_ratio)
    assert curve(eta).C <= dual.landing_bound(at, eta) * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.floats(0.0, 3.0), log_eta=st.floats(-6, 6), log_bound=st.floats(-6, -0.1))
def test_newton_lands_left_of_the_root(seed, spread, log_eta, log_bound):
    """1/sqrt(C) is concave: one update from anywhere lands where C is at least the target, or left of 0."""
    curve = Curve(seed, spread)
    target = curve(0.0).C * 10**log_bound
    eta = dual._newton_update(curve(10**log_eta), target)
    assert eta <= 0 or curve(eta).C >= target * (1 - 1e-9)


def test_steady_run_needs_no_probe():
    """From the root of a problem 10 % off, one update and not a single further evaluation."""
    curve = Curve(0, 0.3)
    bound = 1e-3 * curve(0.0).C
    root = reference.solve_dual(lambda eta: curve(eta).C - bound)
    curve.count = 0
    solution = dual.newton(curve(1.1 * root), bound, curve)
    assert (solution.evaluations, curve.count) == (1, 1)
    assert abs(curve(solution.eta).C / bound - 1) <= 1e-3


def test_landing_bound_survives_cancellation():
    """m_2 - m_1^2 rounds to 0 here; the first landing would be at 2.4 times the bound."""
    z, c = np.array([1e-10, 0.5, 2.0]), np.array([1e-4, 0.3, 1.0])

    def curve(eta):
        weight = c / (z + eta) ** 2
        terms = weight, -2 * weight / (z + eta), 6 * weight / (z + eta) ** 2
        return dual.Evaluation(eta, *(float(np.sum(x)) for x in terms))

    assert abs(curve(dual.newton(curve(0.0), 1.0, curve).eta).C - 1) <= 1e-3


def test_newton_survives_an_overflow():
    """C that leaves the range near 0 is met from the right."""
    curve = Curve(1, 0.5)
    bound = 1e-2 * curve(0.0).C
    root = reference.solve_dual(lambda eta: curve(eta).C - bound)

    def limited(eta):
        at = curve(eta)
        return at if eta > 0.5 * root else at._replace(C=math.inf, dC=-math.inf, ddC=math.inf)

    for start in (0.0, 0.4 * root, 1e9 * root, math.inf):
        solution = dual.newton(limited(start), bound, limited)
        assert abs(curve(solution.eta).C / bound - 1) <= 1e-3


def on_device(curve):
    """The same curve for 0-d tensors."""
    return lambda eta: dual.Evaluation(*(torch.as_tensor(x, dtype=torch.float64) for x in curve(eta.item())))


@settings(max_examples=200, deadline=None)
@problems
def test_newton_fixed_meets_the_bound_after_scaling(seed, spread, log_bound, log_eta):
    """Whatever the start, three updates without a branch and the scaling of the step keep to the same 1e-3."""
    curve = Curve(seed, spread)
    inside = curve(0.0).C
    assume(abs(log_bound) > 1e-3)
    bound = torch.tensor(inside * 10**log_bound, dtype=torch.float64)

    evaluate = on_device(curve)
    start = torch.tensor(math.inf if log_eta is None else 10**log_eta, dtype=torch.float64)
    solution = dual.newton_fixed(evaluate(start), bound, evaluate)
    eta, kl = solution.eta, curve(solution.eta.item()).C * solution.scale**2
    assert kl <= bound * (1 + 1e-12) and solution.solved
    if inside <= bound:
        assert eta == 0
    else:
        assert kl >= bound * (1 - 1e-3)


@settings(max_examples=200, deadline=None)
@problems
def test_bisection_follows_the_published_rule(seed, spread, log_bound, log_eta):
    """Host, device and reference give the same eta."""
    curve = Curve(seed, spread)
    bound = curve(0.0).C * 10**log_bound
    previous = None if log_eta is None else min(10**log_eta, 1e4)
    expected = reference.bisection(lambda eta: curve(eta).C - bound, bound, previous)
    assert published(previous, bound, curve) == pytest.approx([expected, expected], rel=1e-14)


def published(previous, bound, curve):
    """eta by the published rule, on the host and on a device."""
    previous = math.inf if previous is None else previous
    host = dual.Dual("bisection", None, previous)
    device = dual.Dual("bisection", None, torch.tensor(previous, dtype=torch.float64))
    target, evaluate = torch.tensor(bound, dtype=torch.float64), on_device(curve)
    return [
        host.solve(curve(host.trial), bound, curve).eta,
        device.solve(evaluate(device.trial), target, evaluate).eta.item(),
    ]


GOLDEN = [  # previous, bound, eta; C = 100 / eta^2, worked out by hand
    # [1, 9]: C(5) = 4 is the bound itself: the end goes to 5, then the round stops: the middle of [1, 5].
    (3.0, 4.0, 3.0),
    # [1, 9]: C(5) = 4 -> [1, 5], C(3) = 11.1 -> [3, 5], C(4) = 6.25 -> [3, 4], C(3.5) = 8.16 -> [3, 3.5], within 10 % of 9.
    (3.0, 9.0, 3.25),
    # The next step, [13/12, 39/4]: C(65/12) = 3.41 -> [13/12, 65/12], C(13/4) = 9.47 -> [13/4, 65/12], within 10 %.
    (3.25, 9.0, 13 / 3),
    # After the bound was multiplied by 0.006, [13/9, 13]: C is far above 0.054 everywhere: towards the upper end, until the
    # bracket is narrower than 0.5: five halvings of 104/9.
    (13 / 3, 0.054, 13 - 104 / 9 / 64),
    # First step, [0, 10000]: C(5000), C(2500), ... C(78.125) = 0.016 are below 0.07; C(39.0625) = 0.0655 too, but within 10 %:
    # the middle of [0, 39.0625], where C is four times as large.
    (None, 0.07, 19.53125),
]


@pytest.mark.parametrize("previous, bound, eta", GOLDEN)
def test_the_published_rule_by_hand(previous, bound, eta):
    """The bracket's end moves first, then the 10 % test may stop; eta is the middle of the halved bracket."""

    def curve(x):
        return dual.Evaluation(x, 100 / x**2, -200 / x**3, 600 / x**4)

    assert published(previous, bound, curve) == pytest.approx([eta, eta], rel=1e-14)
    assert reference.bisection(lambda x: curve(x).C - bound, bound, previous) == pytest.approx(eta, rel=1e-14)


def test_published_rule_leaves_small_eta_unsolved():
    """Below 0.1875 the bracket is narrower than 0.5: the answer is 5/3 of the last one, whatever C says."""
    curve = Curve(0, 0.3)
    for bound in (1e-9, 1e9):
        assert dual.bisection(0.15, curve(0.25), bound, curve).eta == pytest.approx(0.25)


def test_fixed_eta():
    at = dual.Evaluation(2.0, 5.0, -1.0, 1.0)
    given = dual.Dual("newton", 2.0, 0.3)
    assert given.trial == 2.0
    assert given.solve(at, 1.0, lambda eta: at) == dual.DualSolution(2.0, 1, True)
    two, one = torch.tensor(2.0), torch.tensor(1.0)
    solution = dual.Dual("newton", two, 0.3).solve(at._replace(eta=two, C=5 * one), one, lambda eta: at)
    assert (solution.eta, solution.evaluations, solution.active, solution.scale) == (2.0, 1, True, 1.0)
