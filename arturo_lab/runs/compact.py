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
from arturo_lab.runs.records import Record, RecordError, number, parse_rows

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
    try:
        return [_record(path, head, run) for run in runs]
    except (KeyError, TypeError, IndexError) as error:
        raise RecordError(f"{path.name}: a run lacks {error}") from error


def _record(path: Path, head: dict[str, Any], run: dict[str, Any]) -> Record:
    fields = run["metrics"]
    epochs = max((len(values) for values in fields.values()), default=0)
    rows = tuple({field: number(values[i]) for field, values in fields.items()} for i in range(epochs))
    folder = path.parent / run["task"] / run["name"]
    return Record(folder, run["config"], head["environments"][run["environment"]], rows, run["result"], run["result"]["status"])
