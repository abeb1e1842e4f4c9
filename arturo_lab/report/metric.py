"""The number by which a task's runs are judged: what it is called, its unit, and which direction is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn.functional import cross_entropy

from arturo_lab.runs.records import Record, number
from arturo_lab.tasks.catalog import TASKS


@dataclass(frozen=True)
class ShownMetric:
    """Args:
    name: its field in metrics.jsonl.
    unit: of the values as shown; fractions are shown in percent.
    higher: whether more is better.
    called: what it is called, if not as its field.
    """

    name: str = "test_accuracy"
    unit: str = "%"
    higher: bool = True
    called: str = ""

    @property
    def title(self) -> str:
        """
        Example:
            >>> ShownMetric().title, ShownMetric("test_loss", "nats", higher=False).title, ShownMetric("rmse", "").title
            ('test accuracy', 'test loss', 'rmse')
        """
        return self.called or self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """
        Example:
            >>> ShownMetric().heading, ShownMetric("rmse", "").heading
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
            >>> ShownMetric().text(0.9774), ShownMetric("test_loss", "nats", False).text(1.43712)
            ('97.74', '1.4371')
        """
        return f"{self.scale * value:.{self.digits(value)}f}" if math.isfinite(value) else "-"

    def with_unit(self, value: float) -> str:
        """A round number as text.

        Example:
            >>> ShownMetric().with_unit(0.915), ShownMetric("test_loss", "nats", False).with_unit(1.5)
            ('91.5 %', '1.5 nats')
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
            >>> ShownMetric().rounded_target(0.949), ShownMetric("test_loss", "nats", False).rounded_target(1.437)
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


ACCURACY = ShownMetric()


def metric_of(runs: Sequence[Record]) -> ShownMetric:
    """What the first run that is over says, else what its task says; of a task that is not known, the test accuracy."""
    blocks = [run.result.get("metric") for run in runs]
    task = str(runs[0].config["task"]) if runs else ""
    block = next((block for block in blocks if isinstance(block, dict)), None)
    if block is None:
        known = TASKS.find(task)
        block = {} if known is None else known.metric.described()
    if not isinstance(block.get("name"), str):
        return ACCURACY
    unit = "%" if block.get("unit") == "fraction" else str(block.get("unit") or "")
    return ShownMetric(block["name"], unit, block.get("better", "higher") == "higher")


def loss_unit(task: str, metric: ShownMetric) -> str:
    """Of a task's loss: nats where it is a cross-entropy, else what the task says, if it does.

    Example:
        >>> loss_unit("digits-mlp", ACCURACY), loss_unit("diabetes-mlp", ShownMetric("test_rmse", "", higher=False))
        ('nats', 'variance of the targets')
        >>> loss_unit("gone.py:TASK", ACCURACY), loss_unit("gone.py:TASK", ShownMetric("test_rmse", "mm", higher=False))
        ('nats', '')
    """
    if metric.name == "test_loss":
        return metric.unit
    known = TASKS.find(task)
    if known is None:
        return "nats" if metric.unit == "%" else ""
    named = next((each.unit for each in known.metrics if each.name == "loss"), "")
    return named or ("nats" if known.loss is cross_entropy else "")


def final_value(result: dict[str, Any], metric: ShownMetric) -> float | None:
    """The last epoch's value, never the best epoch's, which would peek."""
    return number(result.get(metric.name))
