"""Many runs in one file, ``runs.jsonl``: what tables and curves are made of, without checkpoints and steps.

| line | holds |
|---|---|
| first | ``format``, and ``environments``, each once |
| each other | ``task``, ``name`` (of its folder), ``config``, ``environment`` (its number), ``result``, ``metrics`` |

`arturo report` and `arturo reproduce --no-train` read such a file as if the folders existed. Nothing resumes from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arturo_lab.runs import atomic
from arturo_lab.runs.records import Record, RecordError, check_config, check_result, number, parse_rows

NAME = "runs.jsonl"
FORMAT = 1
DIGITS = 7  # of a float: more than any table shows


def write_compact(path: Path, records: Iterable[Record]) -> None:
    """Runs that are over; those already in the file stay unless they are among ``records``."""
    kept = {identity(record): record for record in (read_compact(path) if path.exists() else [])}
    kept.update({identity(record): record for record in records if record.status != "unfinished"})
    environments: dict[str, int] = {}
    lines = []
    for record in kept.values():
        place = environments.setdefault(json.dumps(record.environment, sort_keys=True), len(environments))
        fields = list(dict.fromkeys(field for row in record.rows for field in row))
        metrics = {field: [rounded(row.get(field)) for row in record.rows] for field in fields}
        metrics = {field: values for field, values in metrics.items() if any(value is not None for value in values)}
        line = {
            "task": record.config["task"],
            "name": record.folder.name,
            "config": record.config,
            "environment": place,
            "result": record.result,
            "metrics": metrics,
        }
        lines.append(line)
    head = {"format": FORMAT, "environments": [json.loads(text) for text in environments]}
    text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in (head, *lines))
    atomic.write(path, text.encode())


def identity(record: Record) -> tuple[str, str]:
    return str(record.config["task"]), record.folder.name


def rounded(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.{DIGITS}g}")


def read_compact(path: Path) -> list[Record]:
    """What :func:`write_compact` wrote. A RecordError names the file."""
    lines = parse_rows(path.read_bytes(), path.name)
    if not lines or lines[0].get("format") != FORMAT:
        raise RecordError(f"{path.name}: not a file of runs of format {FORMAT}")
    head, *runs = lines
    environments = head.get("environments")
    if not isinstance(environments, list) or not all(isinstance(each, dict) for each in environments):
        raise RecordError(f"{path.name}: line 1: environments must be a list of objects, got {shortened(environments)}")
    return [_record(path, environments, run, f"{path.name}: line {line}") for line, run in enumerate(runs, start=2)]


FIELDS = {"task": str, "name": str, "config": dict, "environment": int, "result": dict, "metrics": dict}  # of a run's line


def _record(path: Path, environments: list[dict[str, Any]], run: dict[str, Any], where: str) -> Record:
    for key, kind in FIELDS.items():
        if not isinstance(run.get(key), kind) or isinstance(run[key], bool):
            what = {dict: "an object", str: "a word", int: "a number"}[kind]
            raise RecordError(f"{where}: {key} must be {what}, got {shortened(run.get(key))}")
    check_config(run["config"], f"{where}: config")
    check_result(run["result"], f"{where}: result")
    if not 0 <= run["environment"] < len(environments):
        raise RecordError(f"{where}: environment must be one of the {len(environments)} of line 1, got {run['environment']}")
    fields = run["metrics"]
    for field, values in fields.items():
        if not isinstance(values, list) or len(values) != len(next(iter(fields.values()))):
            raise RecordError(f"{where}: {field} must be a list with a value for each epoch, got {shortened(values)}")
    epochs = max((len(values) for values in fields.values()), default=0)
    rows = tuple({field: number(values[i]) for field, values in fields.items()} for i in range(epochs))
    folder = path.parent / run["task"] / run["name"]
    return Record(folder, run["config"], environments[run["environment"]], rows, run["result"], run["result"]["status"])


def shortened(value: Any) -> str:
    """For a message of one line.

    Example:
        >>> shortened(None), shortened([0.5] * 99)
        ('None', '[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0...')
    """
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
