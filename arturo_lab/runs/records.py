"""The content of run folders, read without touching them, even while another process writes; arturo_lab.runs.run lists it.

A run folder is one that holds ``config.json``. One that cannot be read is a problem to report, not a crash.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUIRED = {"task": str, "optimizer": str, "seed": int, "epochs": int}  # of config.json
STATUSES = ("finished", "diverged")  # of result.json; a run without one is "unfinished"
EpochRow = dict[str, float | None]


@dataclass(frozen=True)
class Record:
    """One run."""

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    rows: tuple[EpochRow, ...]  # one per epoch; None stands for a number that was not finite
    result: dict[str, Any]  # empty as long as the run is not over
    status: str  # finished, diverged or unfinished

    def series(self, metric: str) -> list[float | None]:
        """One metric, epoch by epoch; None where it is missing or was not finite."""
        return [row.get(metric) for row in self.rows]

    @property
    def wall_seconds(self) -> list[float]:
        """Seconds of training up to the end of each epoch."""
        total, times = 0.0, []
        for row in self.rows:
            recorded = row.get("wall_seconds")
            total = recorded if recorded is not None else total + (row.get("seconds") or 0.0)
            times.append(total)
        return times


@dataclass(frozen=True)
class Problem:
    """A run, or a part of one, that the report leaves out, and why."""

    path: Path  # below the folder that was read
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class RecordError(ValueError):
    """A file of a run folder that does not say what it should. The message starts with the file's name."""


def read_run(folder: Path) -> Record:
    """One run folder. Raises RecordError for what cannot be read; a last row that was being written is left out."""
    config = read_object(folder / "config.json")
    check_config(config, "config.json")
    result = read_result(folder) or {}
    raw = (folder / "metrics.jsonl").read_bytes() if (folder / "metrics.jsonl").exists() else b""
    rows = tuple(
        {key: number(value) for key, value in row.items()} for row in epoch_rows(raw[: raw.rfind(b"\n") + 1], "metrics.jsonl")
    )
    if result.get("status") == "finished" and len(rows) != config["epochs"]:
        raise RecordError(f"metrics.jsonl: has {len(rows)} of {config['epochs']} epochs, but result.json says finished")
    environment = read_object(folder / "environment.json") if (folder / "environment.json").exists() else {}
    return Record(folder, config, environment, rows, result, result.get("status", "unfinished"))


def read_result(folder: Path) -> dict[str, Any] | None:
    """What ``result.json`` says; None as long as there is none."""
    if not (folder / "result.json").exists():
        return None
    result = read_object(folder / "result.json")
    check_result(result, "result.json")
    return result


def check_config(config: dict[str, Any], name: str) -> None:
    """Whether it says what every report needs. ``name`` is where it stands, for the error."""
    for key, kind in REQUIRED.items():
        if not isinstance(config.get(key), kind) or isinstance(config[key], bool):
            raise RecordError(f"{name}: {key} must be {kind.__name__}, got {config.get(key)!r}")


def check_result(result: dict[str, Any], name: str) -> None:
    """The same of a run that is over."""
    if result.get("status") not in STATUSES:
        raise RecordError(f"{name}: status must be {' or '.join(STATUSES)}, got {result.get('status')!r}")
    key = "test_accuracy"
    if "metric" in result:  # a run of before has none: it classified
        if not isinstance(result["metric"], dict) or result["metric"].get("better") not in ("higher", "lower"):
            raise RecordError(f"{name}: metric must say its name and which is better, got {result['metric']!r}")
        key = str(result["metric"].get("name"))
    if result["status"] == "finished" and number(result.get(key)) is None:
        raise RecordError(f"{name}: {key} must be a number, got {result.get(key)!r}")


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``steps.jsonl``, none if it is not there; a last one that was being written is left out."""
    raw = (folder / "steps.jsonl").read_bytes() if (folder / "steps.jsonl").exists() else b""
    return parse_rows(raw[: raw.rfind(b"\n") + 1], "steps.jsonl")


def epoch_rows(raw: bytes, name: str) -> list[dict[str, Any]]:
    """The rows in ``raw``, which must be epoch 1, 2, and so on. ``name`` is the file's, for the error."""
    rows = parse_rows(raw, name)
    for count, row in enumerate(rows, start=1):
        if row.get("epoch") != count:
            raise RecordError(f"{name}: line {count} must be epoch {count}, got {row.get('epoch')!r}")
    return rows


def parse_rows(raw: bytes, name: str) -> list[dict[str, Any]]:
    """An object per line."""
    rows = []
    for count, line in enumerate(raw.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{name}: line {count} is corrupt ({error})") from error
        if not isinstance(row, dict):
            raise RecordError(f"{name}: line {count} must be an object, got {type(row).__name__}")
        rows.append(row)
    return rows


def read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"{path.name}: corrupt ({error})") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path.name}: must be an object, got {type(value).__name__}")
    return value


def number(value: Any) -> float | None:
    """A finite number, or None for anything else.

    Example:
        >>> number(3), number(float("nan")), number("many"), number(True)
        (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond the floats
        return None
