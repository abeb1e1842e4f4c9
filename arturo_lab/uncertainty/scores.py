"""Scores of predicted probabilities. Pure functions of arrays: probabilities (N, C), labels (N,)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats  # type: ignore[import-untyped]

Array = npt.NDArray[Any]
BINS = 15  # of confidence, as in the papers that report the calibration error
TINY = 1e-12  # a probability of 0 for what happened costs -log of this


@dataclass(frozen=True)
class Bin:
    """The predictions whose confidence lies in one interval: how many, how sure on average, how often right."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Scores:
    """Of one method on one test set. Fractions, nats; ``ood_auroc`` is None without data from elsewhere."""

    accuracy: float
    nll: float
    ece: float
    brier: float
    ood_auroc: float | None
    bins: tuple[Bin, ...]

    @classmethod
    def of(cls, probabilities: Array, labels: Array, elsewhere: Array | None = None) -> Scores:
        bins = reliability(probabilities, labels)
        return cls(
            accuracy=float((probabilities.argmax(1) == labels).mean()),
            nll=nll(probabilities, labels),
            ece=ece(bins),
            brier=brier(probabilities, labels),
            ood_auroc=None if elsewhere is None else auroc(entropy(elsewhere), entropy(probabilities)),
            bins=bins,
        )


def nll(probabilities: Array, labels: Array) -> float:
    """Mean negative log-likelihood, nats.

    Example:
        >>> round(nll(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 0])), 4)
        0.3466
    """
    return float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], TINY)).mean())


def brier(probabilities: Array, labels: Array) -> float:
    """Mean squared distance to the truth as a 0-1 vector: from 0 to 2.

    Example:
        >>> brier(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1]))
        1.25
    """
    truth = np.eye(probabilities.shape[1])[labels]
    return float(((probabilities - truth) ** 2).sum(1).mean())


def reliability(probabilities: Array, labels: Array, bins: int = BINS) -> tuple[Bin, ...]:
    """Predictions sorted into intervals of equal width by the probability of the class they name; empty ones are left out.

    Example:
        >>> reliability(np.array([[0.9, 0.1], [0.3, 0.7], [0.31, 0.69]]), np.array([0, 1, 0]), bins=2)
        (Bin(count=3, confidence=0.7633333333333333, accuracy=0.6666666666666666),)
    """
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    return tuple(
        Bin(int(chosen.sum()), float(confidence[chosen].mean()), float(right[chosen].mean()))
        for chosen in (place == i for i in range(bins))
        if chosen.any()
    )


def ece(bins: tuple[Bin, ...]) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy.

    Example:
        >>> ece((Bin(3, 0.9, 1.0), Bin(1, 0.5, 0.9)))
        0.175
    """
    return sum(b.count * abs(b.confidence - b.accuracy) for b in bins) / sum(b.count for b in bins)


def entropy(probabilities: Array) -> Array:
    """Of each prediction, nats: the score by which what comes from elsewhere should stand out."""
    p = np.asarray(probabilities, dtype=float)
    result: Array = -(p * np.log(np.where(p > 0, p, 1.0))).sum(1)
    return result


def auroc(positive: Array, negative: Array) -> float:
    """The chance that one from ``positive`` scores above one from ``negative``; ties count half.

    Example:
        >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0])), auroc(np.zeros(3), np.zeros(5))
        (0.875, 0.5)
    """
    n, m = len(positive), len(negative)
    ranks = stats.rankdata(np.concatenate([positive, negative]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))
