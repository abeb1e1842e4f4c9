"""The tables of a report as plain data: what summary.json holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from arturo_lab.report.evidence import Estimate
from arturo_lab.report.page import plain
from arturo_lab.report.sections import Section, Summary


def summary(sections: Sequence[Section], command: str, target: float | None = None) -> dict[str, Any]:
    """Accuracies are fractions, times seconds of training; None is what there is none of."""
    environments = {json.dumps(run.environment, sort_keys=True): run.environment for s in sections for run in s.runs}
    result = {
        "command": command,
        "tasks": [section_summary(section, target) for section in sections],
        "environments": list(environments.values()),
    }
    return plain(result)  # type: ignore[no-any-return]


def section_summary(section: Section, target: float | None) -> dict[str, Any]:
    return {
        **section.protocol,
        "title": section.title,
        "seeds": section.seeds,
        "target": section.target if target is None else target,
        "optimizers": [row_summary(row) for row in section.summary(target)],
    }


def row_summary(row: Summary) -> dict[str, Any]:
    variant = row.variant
    return {
        "optimizer": variant.optimizer,
        "label": variant.label,
        "test_accuracy": estimate(row.accuracy),
        "test_accuracy_interval": row.interval,
        "test_accuracy_by_seed": {str(seed): value for seed, value in variant.accuracy.items()},
        "test_loss": estimate(row.loss),
        "best": row.best,
        "behind_best": row.behind,
        "p_against_best": row.p,
        "pairs": row.pairs,
        "seconds_per_epoch": variant.seconds_per_epoch,
        "epochs_to_target": row.epochs_to_target,
        "seconds_to_target": row.seconds_to_target,
        "reached_target": row.reached,
        "runs": {status: len(variant.with_status(status)) for status in ("finished", "diverged", "unfinished")},
        "settings": variant.runs[0].config.get("settings"),
    }


def estimate(value: Estimate | None) -> dict[str, float | None] | None:
    """
    Example:
        >>> estimate(Estimate.of([1.0, 3.0])), estimate(None)
        ({'mean': 2.0, 'doubled_error': 2.0}, None)
    """
    return None if value is None else {"mean": value.mean, "doubled_error": value.doubled_error}
