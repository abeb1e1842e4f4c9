"""The outcome of a search: the trials as plain rows, the best of them, and what k trials were worth. No Optuna in here."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from arturo_lab.report.evidence import Array, Estimate
from arturo_lab.runs import atomic
from arturo_lab.tuning.protocols import Search

DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class TrialRow:
    """One trial: a line of trials.jsonl."""

    study: int
    slot: str  # its number; "cross TASK KEY" for another task's winner
    state: str  # complete, pruned, diverged
    score: float  # mean metric on held-out examples, negative where less is better; of a pruned one over the folds it got
    scores: tuple[float, ...]  # by fold and seed
    params: dict[str, float]
    quasi_random: bool = False  # of the Sobol sequence
    seconds: float = 0.0

    @property
    def crossed(self) -> bool:
        return self.slot.startswith("cross")


def write_rows(rows: Sequence[TrialRow], path: Path) -> None:
    atomic.write(path, "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows).encode())


def read_rows(path: Path) -> list[TrialRow]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [TrialRow(**{**row, "scores": tuple(row["scores"])}) for row in rows]


def winner(rows: Sequence[TrialRow]) -> TrialRow | None:
    """The best of those that were judged on every fold; the earliest of equals. None if all diverged."""
    whole = [row for row in rows if row.state == "complete"]
    return max(whole, key=lambda row: row.score) if whole else None


def best_so_far(rows: Sequence[TrialRow]) -> list[float]:
    """The best complete score after each trial of a study, in the order of the slots; as long as there is none the lowest.

    Example:
        >>> rows = [TrialRow(0, str(i), state, score, (), {}) for i, (state, score) in enumerate(
        ...     [("diverged", 0.0), ("complete", 0.8), ("pruned", 0.9), ("complete", 0.85)])]
        >>> best_so_far(rows)
        [0.0, 0.8, 0.8, 0.85]
    """
    best, result = min((row.score for row in rows), default=0.0), []
    for row in rows:
        best = max(best, row.score) if row.state == "complete" else best
        result.append(best)
    return result


def best_after(rows: Sequence[TrialRow]) -> tuple[Array, Array, Array]:
    """The best score after k = 1, 2, ... trials: mean, 2.5 % and 97.5 % quantile over bootstrap samples of the trials.

    A sample draws as many trials as there are, with replacement, in random order. That treats the trials as exchangeable,
    which those of a Sobol sequence are; those that a sampler proposed are better than the ones before, so the curve is
    too high at small k and the band says how much hangs on single lucky trials. A pruned trial counts by the folds it got, but
    for no more than the winner: it was given up as worse. From a fixed seed.

    Example:
        >>> rows = [TrialRow(0, "0", "complete", 0.8, (), {}), TrialRow(0, "1", "pruned", 0.9, (), {})]
        >>> best_after(rows)[0].round(9).tolist()
        [0.8, 0.8]
    """
    best_one = winner(rows)
    scores = np.array([row.score for row in rows]).clip(max=np.inf if best_one is None else best_one.score)
    draws = np.random.default_rng(0).integers(len(scores), size=(DRAWS, len(scores)))
    best = np.maximum.accumulate(scores[draws], axis=1)
    low, high = np.quantile(best, [0.025, 0.975], axis=0)
    return best.mean(axis=0), low, high


def edges(search: Search, best: TrialRow) -> list[str]:
    """A line for each dimension whose optimum lies at an end of its range."""
    lines = (dimension.edge(best.params[dimension.name]) for dimension in search.space.dimensions)
    return [line for line in lines if line is not None]


def estimate(scores: Sequence[float]) -> dict[str, float | int | None]:
    """As JSON: mean, doubled standard error, and of how many."""
    mean = Estimate.of(scores)
    return {"mean": mean.mean, "doubled_error": mean.doubled_error, "n": len(scores)}


def spread(rows: Sequence[TrialRow]) -> dict[str, object] | None:
    """How much the best score differs from study to study; None for a single one."""
    studies = sorted({row.study for row in rows})
    best = [winner([row for row in rows if row.study == study and not row.crossed]) for study in studies]
    scores = [row.score for row in best if row is not None]
    if len(scores) < 2:
        return None
    return {"best": scores, "mean": statistics.fmean(scores), "standard_deviation": statistics.stdev(scores)}
