"""The fixed multiplier of the paper's ablation, chosen from a run with a trust region."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from arturo_lab.errors import RunError
from arturo_lab.runs.records import RecordError, number, read_steps


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of a run, step by step."""

    etas: tuple[float, ...]

    @property
    def median(self) -> float:
        """What a fixed eta is best set to: half of the steps were longer, half shorter.

        Example:
            >>> Multipliers((1.0, 9.0, 2.0)).median
            2.0
        """
        return statistics.median(self.etas)

    def quantile(self, share: float) -> float:
        """
        Example:
            >>> Multipliers(tuple(map(float, range(11)))).quantile(0.1)
            1.0
        """
        return sorted(self.etas)[round(share * (len(self.etas) - 1))]


def multipliers(run: Path) -> Multipliers:
    """Read ``steps.jsonl`` of a run folder; its optimizer must have had a trust region."""
    if not (run / "steps.jsonl").exists():
        raise RunError(f"{run}: is not a run folder, it has no steps.jsonl")
    try:
        rows = read_steps(run)
    except RecordError as error:
        raise RunError(f"{run}/{error}") from error
    etas = tuple(eta for row in rows if (eta := number(row.get("eta"))) is not None)
    if not etas:
        raise RunError(f"{run}/steps.jsonl: no step has an eta; the median is taken from a run of arTuRO with a trust region")
    return Multipliers(etas)
