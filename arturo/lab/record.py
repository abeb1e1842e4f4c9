"""Reading a run folder without touching it. What is in one: :mod:`arturo.lab.run`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arturo.lab.config import RunConfig
from arturo.lab.epoch import EpochMetrics, from_row
from arturo.lab.errors import ConfigError, RunError

NOTHING_CHANGED = "nothing was changed. Repair it, or remove the folder to start again"


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says, read without touching it."""

    folder: Path
    config: RunConfig
    metrics: tuple[EpochMetrics, ...]  # of the epochs so far
    result: dict[str, Any] | None  # None: it is not over
    environment: dict[str, Any]


def load_run(folder: Path) -> RunRecord:
    """Read a run, over or not, also while another process writes it."""
    config = read_config(folder)
    raw = (folder / "metrics.jsonl").read_bytes() if (folder / "metrics.jsonl").exists() else b""
    rows = parse_rows(raw[: raw.rfind(b"\n") + 1], folder / "metrics.jsonl")  # a writer may be in the middle of the next one
    result = read_json(folder / "result.json") if (folder / "result.json").exists() else None
    described = read_json(folder / "environment.json") if (folder / "environment.json").exists() else {}
    return RunRecord(folder, config, as_metrics(rows, folder / "metrics.jsonl"), result, described)


def read_config(folder: Path) -> RunConfig:
    path = folder / "config.json"
    try:
        return RunConfig.from_json(read_json(path))
    except (ConfigError, TypeError) as error:
        raise RunError(f"{path}: not a config of this version: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunError(f"{path}: not there: {path.parent} is not a run folder") from error
    except ValueError as error:
        raise RunError(f"{path}: corrupt ({error}); {NOTHING_CHANGED}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path}: corrupt (not an object); {NOTHING_CHANGED}")
    return value


def parse_rows(raw: bytes, path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunError(f"{path}: line {number} is corrupt ({error}); {NOTHING_CHANGED}") from error
    return rows


def as_metrics(rows: list[Any], path: Path) -> tuple[EpochMetrics, ...]:
    try:
        metrics = tuple(from_row(row) for row in rows)
    except (TypeError, KeyError) as error:
        raise RunError(f"{path}: not the rows of this version ({error}); {NOTHING_CHANGED}") from error
    if [m.epoch for m in metrics] != list(range(1, len(metrics) + 1)):
        raise RunError(f"{path}: the epochs are {[m.epoch for m in metrics]}; {NOTHING_CHANGED}")
    return metrics
