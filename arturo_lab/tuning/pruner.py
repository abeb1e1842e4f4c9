"""When to give a configuration up before its last fold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from optuna import Study
from optuna.pruners import BasePruner, WilcoxonPruner
from optuna.trial import FrozenTrial

GAP = 4.0  # in standard deviations of the best configuration's scores


class FoldPruner(BasePruner):
    """Wilcoxon's signed-rank test against the best configuration, fold by fold, and a look at the size of the gap.

    The test goes by ranks: it needs four folds to reach its level of 0.1, however bad the configuration. A gap of more than
    four standard deviations needs no test: :func:`hopeless`.
    """

    def __init__(self) -> None:
        self.wilcoxon = WilcoxonPruner(p_threshold=0.1)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        try:
            best = study.best_trial.intermediate_values
        except ValueError:  # there is none yet
            return False
        return hopeless(trial.intermediate_values, best) or self.wilcoxon.prune(study, trial)


def hopeless(scores: Mapping[int, float], best: Mapping[int, float]) -> bool:
    """Whether scores lie so far below the best ones on the same folds that no luck of the draw explains it.

    The yardstick is how much the best configuration's scores differ from fold to fold and seed to seed, at least by half a
    hundredth of them.

    Example:
        >>> best = {0: 0.97, 1: 0.96, 2: 0.98}
        >>> hopeless({0: 0.80}, best), hopeless({0: 0.95}, best)
        (True, False)
    """
    common = scores.keys() & best.keys()
    if not common or len(best) < 2:
        return False
    behind = statistics.fmean(best[step] - scores[step] for step in common)
    return behind > GAP * max(statistics.stdev(best.values()), 0.005 * abs(statistics.fmean(best.values())))
