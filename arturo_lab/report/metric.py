"""The number by which a task's runs are judged: what it is called, its unit, and which direction is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arturo_lab.runs.records import Record, number


@dataclass(frozen=True)
class Metric:
    """Args:
    name: its field in metrics.jsonl.
    unit: of the values as shown; fractions are shown in percent.
    higher: whether more is better.
    """

    name: str = "test_accuracy"
    unit: str = "%"
    higher: bool = True

    @property
    def title(self) -> str:
        """
        Example:
            >>> Metric().title, Metric("test_loss", "nats", higher=False).title, Metric("rmse", "").title
            ('test accuracy', 'test loss', 'rmse')
        """
        return self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """
        Example:
            >>> Metric().heading, Metric("rmse", "").heading
            ('test accuracy [%]', 'rmse')
        """
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    @property
    def scale(self) -> float:
        """What a value is multiplied by before it is shown."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def difference_unit(self) -> str:
        return "points" if self.unit == "%" else self.unit

    def text(self, value: float) -> str:
        """
        Example:
            >>> Metric().text(0.9774), Metric("test_loss", "nats", False).text(1.43712)
            ('97.74', '1.4371')
        """
        return f"{self.scale * value:.{self.digits(value)}f}" if math.isfinite(value) else "-"

    def with_unit(self, value: float) -> str:
        """A round number as it is said.

        Example:
            >>> Metric().with_unit(0.915), Metric("test_loss", "nats", False).with_unit(1.5), Metric("rmse", "").with_unit(20.0)
            ('91.5 %', '1.5 nats', '20')
        """
        text = self.text(value)
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return f"{text} {self.unit}" if self.unit else text

    def digits(self, value: float) -> int:
        """Decimals: two of a percentage, else four or, of small numbers, as many as show four figures."""
        if self.unit == "%":
            return 2
        return (
            4 if value == 0 or not math.isfinite(value) else max(1, min(8, 4 - min(0, math.floor(math.log10(abs(value))) + 1)))
        )

    def ahead(self, one: float, other: float) -> float:
        """By how much ``one`` is better."""
        return one - other if self.higher else other - one

    def rounded_target(self, value: float) -> float:
        """A round number that ``value`` reaches: down to a percent, else to two figures on the worse side.

        Example:
            >>> Metric().rounded_target(0.949), Metric("test_loss", "nats", False).rounded_target(1.437)
            (0.94, 1.5)
        """
        if self.unit == "%":
            step = 0.01
        elif value == 0:
            return 0.0
        else:
            step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
        steps = value / step
        return float(f"{(math.floor(steps + 1e-9) if self.higher else math.ceil(steps - 1e-9)) * step:.10g}")


ACCURACY = Metric()


def metric_of(runs: Sequence[Record]) -> Metric:
    """What the first run that is over says; by default the test accuracy, and the test loss of runs that record none."""
    for run in runs:
        block = run.result.get("metric")
        if isinstance(block, dict) and isinstance(block.get("name"), str):
            unit = "%" if block["name"].endswith("accuracy") else str(block.get("unit") or "")
            return Metric(block["name"], unit, block.get("better", "higher") == "higher")
    rows = [run.rows[-1] for run in runs if run.rows]
    if rows and all(row.get("test_accuracy") is None for row in rows) and any(row.get("test_loss") is not None for row in rows):
        return Metric("test_loss", "nats", higher=False)
    return ACCURACY


def final_value(result: dict[str, Any], metric: Metric) -> float | None:
    """The last epoch's value, never the best epoch's, which would peek."""
    block = result.get("metric")
    if isinstance(block, dict) and block.get("name") == metric.name:
        return number(block.get("value"))
    return number(result.get(metric.name))
