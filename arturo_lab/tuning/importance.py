"""Which of the numbers searched mattered."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import FloatDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances

from arturo_lab.tasks.metrics import WORST
from arturo_lab.tuning.outcome import TrialRow
from arturo_lab.tuning.spaces import Space


def importances(rows: Sequence[TrialRow], space: Space) -> dict[str, float]:
    """The share of the scores' variance that each dimension explains by itself, in a random forest (fANOVA). {} if none varies.

    Pruned trials take part with the folds they got, else only good ones would be left to learn from.
    """
    if len({row.score for row in rows}) < 2:
        return {}
    lowest = min((row.score for row in rows if row.score > WORST), default=0.0)  # else a diverged loss were all the variance
    distributions = {d.name: FloatDistribution(d.low, d.high, log=d.log) for d in space.dimensions}
    study = optuna.create_study(direction="maximize")
    for row in rows:
        value = max(row.score, lowest)
        study.add_trial(optuna.trial.create_trial(params=row.params, distributions=distributions, value=value))  # type: ignore[arg-type]
    shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: float(share) for name, share in shares.items()}
