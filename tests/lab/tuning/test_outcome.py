"""What came of a search: by hand on small numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from optuna import create_study
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from arturo_lab.tuning.importance import importances
from arturo_lab.tuning.outcome import TrialRow, best_after, best_so_far, read_rows, spread, winner, write_rows
from arturo_lab.tuning.pruner import FoldPruner, hopeless
from arturo_lab.tuning.spaces import space
from arturo_lab.tuning.study import quiet


def rows(*scores: float, study: int = 0, state: str = "complete") -> list[TrialRow]:
    return [TrialRow(study, str(i), state, score, (score,), {"lr": 0.1}) for i, score in enumerate(scores)]


def test_winner_is_complete_and_the_first_of_equals() -> None:
    found = winner([*rows(0.9, state="pruned"), *rows(0.5, 0.8, 0.8)])
    assert found is not None and (found.score, found.slot) == (0.8, "1")
    assert winner(rows(0.0, 0.0, state="diverged")) is None


def test_best_so_far_counts_whole_trials() -> None:
    mixed = [*rows(0.4), *rows(0.9, state="pruned"), *rows(0.6, 0.5)]
    assert best_so_far(mixed) == [0.4, 0.4, 0.6, 0.6]


def test_best_after_k_against_all_draws() -> None:
    """Two trials: the best of two draws is the better one in three of four cases, exactly."""
    mean, low, high = best_after(rows(0.2, 0.6))
    assert mean == pytest.approx([0.4, 0.5], abs=0.02)
    assert low.tolist() == [0.2, 0.2] and high.tolist() == [0.6, 0.6]
    mean, low, high = best_after(rows(*np.linspace(0.5, 0.9, 30)))
    assert (np.diff(mean) > 0).all() and (low <= mean).all() and (mean <= high).all() and high[-1] == 0.9


def test_spread_between_studies() -> None:
    found = spread([*rows(0.5, 0.8), *rows(0.9, 0.7, study=1)])
    assert found is not None and found["best"] == [0.8, 0.9] and found["standard_deviation"] == pytest.approx(0.0707, abs=1e-4)
    assert spread(rows(0.5)) is None


def test_rows_on_disk(tmp_path: Path) -> None:
    write_rows(rows(0.5, 0.75), tmp_path / "trials.jsonl")
    assert read_rows(tmp_path / "trials.jsonl") == rows(0.5, 0.75)


def test_hopeless_needs_a_gap_and_a_yardstick() -> None:
    best = {0: 0.97, 1: 0.96, 2: 0.98}  # standard deviation 0.01
    assert hopeless({0: 0.92}, best) and not hopeless({0: 0.94}, best)
    assert not hopeless({0: 0.92, 1: 0.96}, best)
    assert not hopeless({}, best) and not hopeless({0: 0.1}, {0: 0.9})
    assert not hopeless({0: 0.97}, dict.fromkeys(range(3), 0.98))  # equal scores: half a point is the least yardstick


def test_pruner_uses_wilcoxon_for_small_and_steady_gaps() -> None:
    distribution = {"x": FloatDistribution(0, 1)}
    best = {step: 0.95 + 0.01 * step for step in range(6)}
    with quiet():
        study, pruner = create_study(direction="maximize"), FoldPruner()

    def running(scores: dict[int, float]):
        return create_trial(state=TrialState.RUNNING, params={"x": 0.5}, distributions=distribution, intermediate_values=scores)

    assert not pruner.prune(study, running({0: 0.1}))  # nothing to compare with
    study.add_trial(create_trial(params={"x": 0.5}, distributions=distribution, value=0.975, intermediate_values=best))
    behind = {step: score - 0.01 - 0.001 * step for step, score in best.items()}
    assert [pruner.prune(study, running(dict(list(behind.items())[:n]))) for n in (1, 2, 3, 4)] == [False, False, False, True]
    assert not pruner.prune(study, running({step: score + 0.001 for step, score in best.items()}))
    assert pruner.prune(study, running({0: 0.5}))


def test_importances_find_the_one_that_matters() -> None:
    found = space("fair", "sgd")
    rng = np.random.default_rng(0)
    made_up = []
    for i, shares in enumerate(rng.random((40, 3))):
        made_up.append(TrialRow(0, str(i), "complete", float(1 - (shares[0] - 0.5) ** 2), (), found.point(tuple(shares))))
    shares = importances(made_up, found)
    assert set(shares) == {"lr", "1-momentum", "weight_decay"} and shares["lr"] > 0.8
    assert importances(made_up[:1], found) == {}
