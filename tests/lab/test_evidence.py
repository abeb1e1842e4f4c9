"""The statistics, against brute force, scipy, and what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from arturo_lab.report.evidence import (
    Arrival,
    Estimate,
    bootstrap_interval,
    expanded_tail,
    first_reached,
    holm,
    lower_quantile,
    median_arrival,
    paired_t_test,
    resamples,
)

number = st.floats(-100, 100).map(lambda x: round(x, 3))
sample = st.lists(number, min_size=2, max_size=6)


@given(sample)
def test_estimate(values: list[float]) -> None:
    estimate = Estimate.of(values)
    assert estimate.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert estimate.doubled_error == pytest.approx(2 * stats.sem(values), abs=1e-9)


def test_estimate_of_a_diverged_run_is_not_a_number() -> None:
    assert math.isnan(Estimate.of([1.0, math.inf, 1.0]).doubled_error or 0)


# --- bootstrap


@pytest.mark.parametrize("n", range(2, 7))
def test_resamples_count_all_of_them(n: int) -> None:
    counts, weights = resamples(n)
    assert (counts.sum(axis=1) == n).all() and weights.sum() == pytest.approx(1)
    brute: dict[tuple[float, ...], int] = {}
    for draw in itertools.product(range(n), repeat=n):
        key = tuple(float(draw.count(k)) for k in range(n))
        brute[key] = brute.get(key, 0) + 1
    assert {tuple(c): round(w * n**n) for c, w in zip(counts.tolist(), weights, strict=True)} == brute


@given(st.lists(number, min_size=2, max_size=5), st.sampled_from([0.5, 0.8, 0.95]))
def test_interval_by_brute_force(values: list[float], level: float) -> None:
    n = len(values)
    means = sorted(sum(draw) / n for draw in itertools.product(values, repeat=n))
    out = math.ceil(expanded_tail(n, level) * n**n - 1e-9)  # so many resamples lie at or below the lower end
    low, high = bootstrap_interval(values, level)
    assert low == pytest.approx(means[max(out - 1, 0)], abs=1e-9)
    assert high == pytest.approx(means[-max(out, 1)], abs=1e-9)


def test_interval_is_scipys_percentile_interval_at_the_expanded_level() -> None:
    values = np.random.default_rng(1).normal(size=9)
    level = 1 - 2 * expanded_tail(9, 0.95)
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=level, method="percentile", n_resamples=200_000, rng=np.random.default_rng(2)
    ).confidence_interval
    assert bootstrap_interval(values.tolist()) == pytest.approx((theirs.low, theirs.high), abs=0.02 * values.std())


def test_exact_and_drawn_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).normal(size=10).tolist()
    exact = bootstrap_interval(values)
    monkeypatch.setattr("arturo_lab.report.evidence.EXACT_BOOTSTRAP", 5)
    drawn = bootstrap_interval(values)
    assert drawn != exact and drawn == pytest.approx(exact, abs=0.03)
    assert drawn == bootstrap_interval(values)  # the seed is fixed


@given(sample, st.floats(-50, 50), st.floats(0.1, 10))
def test_interval_moves_with_the_values(values: list[float], shift: float, scale: float) -> None:
    low, high = bootstrap_interval(values)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert low - 1e-9 <= np.mean(values) <= high + 1e-9
    moved = bootstrap_interval([shift + scale * v for v in values])
    assert moved == pytest.approx((shift + scale * low, shift + scale * high), abs=1e-6)
    mirrored = bootstrap_interval([-v for v in values])
    assert mirrored == pytest.approx((-high, -low), abs=1e-9)


@given(sample)
def test_wider_levels_hold_narrower_ones(values: list[float]) -> None:
    intervals = [bootstrap_interval(values, level) for level in (0.5, 0.8, 0.95, 0.99)]
    assert all(wide[0] <= narrow[0] and narrow[1] <= wide[1] for narrow, wide in itertools.pairwise(intervals))


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_expanded_tail(n: int, level: float) -> None:
    tail = expanded_tail(n, level)
    assert tail == pytest.approx(stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf((1 + level) / 2, n - 1)))
    assert tail < (1 - level) / 2  # further out than the plain percentile interval


def test_one_value_has_no_interval() -> None:
    assert bootstrap_interval([1.0]) is None


@pytest.mark.parametrize(("n", "at_least", "at_most"), [(3, 0.70, 0.80), (5, 0.89, 0.97), (8, 0.92, 0.98)])
def test_coverage_on_gaussian_samples(n: int, at_least: float, at_most: float) -> None:
    # standard error of the simulated coverage: below 0.014; n = 3 cannot do better than 75 %
    random, hits = np.random.default_rng(4), 0
    for values in random.normal(size=(1000, n)):
        low, high = bootstrap_interval(values.tolist())
        hits += low <= 0 <= high
    assert at_least < hits / 1000 < at_most


def test_lower_quantile() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([0.5, 0.3, 0.2])
    assert [lower_quantile(values, weights, share) for share in (0.0, 0.3, 0.31, 0.5, 0.51, 1.0)] == [1, 1, 2, 2, 3, 3]


# --- paired test


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


# --- time to target


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9))
def test_median_without_censoring_is_the_median(times: list[int]) -> None:
    assert median_arrival([Arrival(t, True) for t in times]) == np.median(times)


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


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8), st.floats(0, 1))
def test_first_reached(values: list[float | None], target: float) -> None:
    index = first_reached(values, target)
    hits = [i for i, value in enumerate(values) if value is not None and value >= target]
    assert index == (hits[0] if hits else None)
