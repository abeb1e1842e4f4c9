"""The statistics, against brute force, scipy, and what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from arturo_lab.report.evidence import (
    Arrival,
    Estimate,
    first_reached,
    holm,
    median_arrival,
    paired_t_test,
    seeds_for,
    sign_test,
    smallest_p,
)

number = st.floats(-100, 100).map(lambda x: round(x, 3))
sample = st.lists(number, min_size=2, max_size=6)


@settings(deadline=None)
@given(sample)
def test_estimate(values: list[float]) -> None:
    estimate = Estimate.of(values)
    assert estimate.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert estimate.doubled_error == pytest.approx(2 * stats.sem(values), abs=1e-9)


def test_estimate_of_a_diverged_run_is_not_a_number() -> None:
    assert math.isnan(Estimate.of([1.0, math.inf, 1.0]).doubled_error or 0)


# --- interval


@settings(deadline=None)
@given(sample, st.floats(-50, 50), st.floats(0.1, 10))
def test_interval_is_scipys_and_moves_with_the_values(values: list[float], shift: float, scale: float) -> None:
    low, high = Estimate.of(values).interval
    if np.std(values) > 1e-6:
        theirs = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (low, high) == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    moved = Estimate.of([shift + scale * v for v in values]).interval
    assert moved == pytest.approx((shift + scale * low, shift + scale * high), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert Estimate.of([1.0]).interval is None and Estimate.of([1.0]).half_width is None


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_interval_covers_what_it_says(n: int) -> None:
    """Where the bootstrap of three seeds, which is from the lowest to the highest, covers 75 %."""
    samples = np.random.default_rng(4).normal(size=(4000, n))  # standard error of the simulated coverage: 0.0034
    intervals = [Estimate.of(values.tolist()).interval for values in samples]
    assert np.mean([low <= 0 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.012)


# --- what n seeds can carry


def test_no_n_seeds_carry_less_than_their_signs() -> None:
    assert [smallest_p(n) for n in (1, 2, 3, 6, 10)] == [1.0, 0.5, 0.25, 0.03125, 2**-9]
    for level in (0.3, 0.05, 0.01, 1e-3):
        n = seeds_for(level)
        assert smallest_p(n) <= level and (n == 3 or smallest_p(n - 1) > level)


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 12))
def test_sign_test_is_scipys(won: int, lost: int) -> None:
    expected = 1.0 if won + lost == 0 else stats.binomtest(won, won + lost).pvalue
    assert sign_test(won, lost) == pytest.approx(expected)
    assert won + lost == 0 or sign_test(won, lost) >= smallest_p(won + lost)


# --- paired test


@settings(deadline=None)
@given(st.lists(number, min_size=2, max_size=8))
def test_paired_t_test_is_scipys(differences: list[float]) -> None:
    if np.std(differences) < 1e-6:
        return  # scipy warns, and has no answer
    p = paired_t_test(differences)
    assert p == pytest.approx(stats.ttest_rel(differences, [0.0] * len(differences)).pvalue, rel=1e-6, abs=1e-12)
    assert paired_t_test([-d for d in differences]) == p == pytest.approx(paired_t_test(differences[::-1]))


def test_differences_without_spread() -> None:
    """Three seeds on few images may all differ by the same: no reason to be certain."""
    assert paired_t_test([0.0, 0.0, 0.0]) == 1.0
    assert paired_t_test([0.1, 0.1, 0.1]) == 0.25 == paired_t_test([0.3 - 0.2, 0.1, 0.4 - 0.3])
    assert paired_t_test([0.1, 0.2, -0.3]) == pytest.approx(1.0)  # a mean of nothing but rounding


def test_t_test_keeps_its_level_where_there_is_no_difference() -> None:
    random = np.random.default_rng(0)
    found = [paired_t_test(random.normal(size=3).tolist()) < 0.05 for _ in range(4000)]
    assert 0.04 < np.mean(found) < 0.06


# --- Holm


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    m = len(p_values)
    for i, p in enumerate(p_values):  # by definition: the largest of (m - rank) p over all that are no larger
        ranked = sorted(p_values)
        expected = max(min(1.0, (m - k) * q) for k, q in enumerate(ranked) if q <= p)
        assert adjusted[i] == pytest.approx(expected)
    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))


def test_holm_of_one_is_itself() -> None:
    assert holm([0.2]) == [0.2] and holm([]) == []


# --- what is tested must be fixed before the numbers are seen


def false_alarms(n: int, k: int, comparisons: str, trials: int = 2000) -> float:
    """How often some p is below 5 % among k optimizers that do not differ, over n seeds. Seeds shift all of them alike."""
    random, alarms = np.random.default_rng(7), 0
    for _ in range(trials):
        values = random.normal(size=(k, n)) + 3 * random.normal(size=n)
        if comparisons == "best":
            best = int(values.mean(axis=1).argmax())
            pairs = [(best, other) for other in range(k) if other != best]
        elif comparisons == "named":
            pairs = [(0, other) for other in range(1, k)]
        else:
            pairs = list(itertools.combinations(range(k), 2))
        adjusted = holm([paired_t_test((values[a] - values[b]).tolist()) for a, b in pairs])
        alarms += min(adjusted) < 0.05
    return alarms / trials


@pytest.mark.parametrize(("n", "k"), [(5, 5), (5, 8), (10, 8)])
def test_the_best_by_the_same_means_gives_false_alarms(n: int, k: int) -> None:
    """7 to 11 % where 5 % were promised, Holm's correction included: why nothing is compared with "the best"."""
    assert 0.065 < false_alarms(n, k, "best") < 0.125


@pytest.mark.parametrize("comparisons", ["named", "all"])
@pytest.mark.parametrize(("n", "k"), [(5, 5), (5, 8), (10, 8)])
def test_comparisons_that_were_fixed_keep_their_level(n: int, k: int, comparisons: str) -> None:
    assert false_alarms(n, k, comparisons) < 0.06  # two standard errors above 0.05


# --- time to target


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9))
def test_median_without_censoring_is_the_median(times: list[int]) -> None:
    assert median_arrival([Arrival(t, True) for t in times]) == np.median(times)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8))
def test_median_is_where_scipys_survival_curve_crosses_a_half(pairs: list[tuple[int, bool]]) -> None:
    arrivals = [Arrival(time, reached) for time, reached in pairs]
    curve = stats.ecdf(
        stats.CensoredData(
            uncensored=[a.time for a in arrivals if a.reached], right=[a.time for a in arrivals if not a.reached]
        )
    ).sf
    survival = dict(zip(curve.quantiles, curve.probabilities, strict=True))
    below = [t for t, s in survival.items() if s < 0.5 - 1e-9]
    half = [t for t, s in survival.items() if abs(s - 0.5) <= 1e-9 and t in {a.time for a in arrivals if a.reached}]
    expected = None if not below else (half[0] + below[0]) / 2 if half else below[0]
    assert median_arrival(arrivals) == expected


def test_those_that_never_arrive_count() -> None:
    arrived = [Arrival(2, True), Arrival(4, True)]
    assert median_arrival([*arrived, Arrival(math.inf, False)]) == 4
    assert median_arrival([*arrived, Arrival(math.inf, False), Arrival(math.inf, False)]) is None
    assert median_arrival([*arrived, Arrival(3, False)]) == 4  # stopped at 3: it might have arrived at 4
    assert median_arrival([]) is None


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8), st.floats(0, 1))
def test_first_reached(values: list[float | None], target: float) -> None:
    index = first_reached(values, target)
    hits = [i for i, value in enumerate(values) if value is not None and value >= target]
    assert index == (hits[0] if hits else None)
    mirrored = first_reached([None if value is None else -value for value in values], -target, higher=False)
    assert mirrored == index
