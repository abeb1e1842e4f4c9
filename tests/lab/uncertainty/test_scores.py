"""The scores against scikit-learn's, and against the obvious."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from arturo_lab.uncertainty.scores import Scores, auroc, ece, entropy, nll, reliability


def predictions(n=300, classes=4, seed=0):
    """Labels that follow the probabilities: calibrated by construction."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(n, classes))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p, (p.cumsum(1) < generator.uniform(size=(n, 1))).sum(1).clip(max=classes - 1)


def test_against_scikit_learn():
    p, y = predictions()
    q, _ = predictions(seed=1)
    found = Scores.of(p, y, q)
    assert found.accuracy == metrics.accuracy_score(y, p.argmax(1))
    assert found.nll == pytest.approx(metrics.log_loss(y, p))
    assert found.brier == pytest.approx(sum(((y == k) - p[:, k]) ** 2 for k in range(4)).mean())
    truth = np.r_[np.ones(len(q)), np.zeros(len(p))]
    assert found.ood_auroc == pytest.approx(metrics.roc_auc_score(truth, np.r_[entropy(q), entropy(p)]))
    assert Scores.of(p, y).ood_auroc is None


def test_calibration_error_by_hand():
    p, y = predictions()
    confidence, right, total = p.max(1), p.argmax(1) == y, 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        total += abs(confidence[inside].sum() - right[inside].sum())
    assert ece(reliability(p, y)) == pytest.approx(total / len(y))


def test_calibrated_and_overconfident():
    p, y = predictions(20_000)
    sure = p**4 / (p**4).sum(1, keepdims=True)
    assert ece(reliability(p, y)) < 0.02 < 0.1 < ece(reliability(sure, y))
    assert nll(p, y) < nll(sure, y)


def test_certain_predictions_stay_finite():
    p = np.eye(3)
    assert Scores.of(p, np.array([0, 1, 2])).nll == 0 and entropy(p).tolist() == [0, 0, 0]
    assert 20 < Scores.of(p, np.array([1, 2, 0])).nll < 30


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_auroc_is_a_count_of_pairs(a, b):
    pairs = [(x > y) + 0.5 * (x == y) for x in a for y in b]
    assert auroc(np.array(a, float), np.array(b, float)) == pytest.approx(np.mean(pairs))
