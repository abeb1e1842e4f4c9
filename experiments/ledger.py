"""What was run and what came out: one JSON line per finished run, and the tables made from them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """An optimizer with its settings; `hyperparameters` are all of them, defaults included."""

    optimizer: str
    settings: dict[str, Any]
    hyperparameters: dict[str, Any] = field(repr=False)

    @property
    def label(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings.items()) or "untouched"


class Ledger:
    """An append-only JSONL file, keyed by the configuration of the run.

    It is read again at every question, so that several processes can share one file. A run counts as done only if every
    part of its configuration agrees: a changed default or a changed problem runs anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Row]:
        if not self.path.exists():
            return {}
        rows = {}
        for number, line in enumerate(self.path.read_text().splitlines(), start=1):
            try:
                row = json.loads(line)
                rows[self.key(row["config"])] = row
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}:{number}: not a result line ({error!r}); delete it to go on") from error
        return rows

    def append(self, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row, sort_keys=True, allow_nan=False) + "\n")

    @staticmethod
    def key(config: Row) -> str:
        return json.dumps(config, sort_keys=True)


@dataclass(frozen=True)
class Cell:
    """One variant on one problem: the metric of every finished seed (None: diverged)."""

    variant: Variant
    metric: str
    values: list[float | None]
    rows: list[Row]

    def score(self) -> float:
        """More is better, whatever the metric; a variant that diverged once is never the best."""
        if not self.values or None in self.values:
            return -math.inf
        mean = statistics.fmean(v for v in self.values if v is not None)
        return mean if self.metric == "accuracy" else -mean

    def text(self) -> str:
        finite = [v * (100 if self.metric == "accuracy" else 1) for v in self.values if v is not None]
        diverged = len(self.values) - len(finite)
        if not self.values:
            return "-"
        digits = 2 if self.metric == "accuracy" else 4
        parts = [f"{statistics.fmean(finite):.{digits}f}"] if finite else []
        if len(finite) > 1:
            parts.append(f"± {statistics.stdev(finite):.{digits}f}")
        if diverged:
            parts.append(f"({diverged} of {len(self.values)} diverged)")
        return " ".join(parts)


def best(cells: Sequence[Cell]) -> Cell:
    return max(cells, key=Cell.score)


def summary_table(table: dict[str, list[Cell]]) -> str:
    """Per problem the best of every baseline's grid, and each variant of the others."""
    columns: list[str] = []
    lines = []
    for problem, cells in table.items():
        row: dict[str, str] = {}
        for name in dict.fromkeys(cell.variant.optimizer for cell in cells):
            own = [cell for cell in cells if cell.variant.optimizer == name]
            if name not in ("adamw", "sgd"):
                row |= {f"{name} {cell.variant.label}": cell.text() for cell in own}
                continue
            top = best(own)
            row[f"{name}, best lr"] = f"{top.text()} ({top.variant.label})" if top.values else "-"
        columns += [column for column in row if column not in columns]
        lines.append((problem, cells, row))
    header = ["problem", "weights", "metric", *columns]
    body = [
        [problem, weights_of(cells), METRIC_NAMES[cells[0].metric], *(row.get(column, "-") for column in columns)]
        for problem, cells, row in lines
    ]
    return markdown(header, body)


def full_table(table: dict[str, list[Cell]]) -> str:
    """Every variant on every problem, with the losses on test data and over the last tenth of the training."""
    header = ["problem", "optimizer", "settings", "seeds", "metric", "result", "test loss", "train loss", "CPU s"]
    body = []
    for problem, cells in table.items():
        for cell in cells:
            last = [row["train_loss"][-1] for row in cell.rows if row["train_loss"]]
            test = [row["metrics"]["loss"] for row in cell.rows if row["metrics"]["loss"] is not None]
            seconds = [row["cpu_seconds"] for row in cell.rows]
            body.append(
                [
                    problem,
                    cell.variant.optimizer,
                    cell.variant.label,
                    str(len(cell.values)),
                    METRIC_NAMES[cell.metric],
                    cell.text(),
                    f"{statistics.fmean(test):.4f}" if test else "-",
                    f"{statistics.fmean(last):.4f}" if last else "-",
                    f"{statistics.fmean(seconds):.1f}" if seconds else "-",
                ]
            )
    return markdown(header, body)


METRIC_NAMES = {"accuracy": "accuracy, %", "loss": "loss"}


def weights_of(cells: Sequence[Cell]) -> str:
    return next((f"{row['weights']:,}" for cell in cells for row in cell.rows), "-")


def markdown(header: list[str], body: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [header, *body]]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
