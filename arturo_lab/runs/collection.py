"""All the runs of a folder: its run folders, and those kept in files of many (:mod:`arturo_lab.runs.compact`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from arturo_lab.errors import ConfigError
from arturo_lab.runs.compact import NAME, identity, read_compact
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Problem, Record, RecordError, read_run


def read_runs(root: Path) -> tuple[list[Record], list[Problem]]:
    """Every run at or below ``root``, which may be a file of runs, and what could not be read."""
    if root.is_file():
        try:
            return read_compact(root), []
        except RecordError as error:
            raise ConfigError(f"DIR: {root} is neither a folder nor a file of runs ({error})") from error
    if not root.is_dir():
        raise ConfigError(f"DIR: {root} does not exist")
    records: list[Record] = []
    problems: list[Problem] = []
    configs = sorted(root.rglob("config.json"))
    for path in configs:
        try:
            records.append(read_run(path.parent))
        except (RecordError, OSError) as error:
            problems.append(Problem(path.parent.relative_to(root), str(error)))
    unique, twice = without_copies(records, root)
    folders = {identity(record) for record in unique}
    files = sorted(root.rglob(NAME))
    for path in files:
        try:
            unique += [record for record in read_compact(path) if identity(record) not in folders]
        except (RecordError, OSError) as error:
            problems.append(Problem(path.relative_to(root), str(error)))
    if not configs and not files:
        raise ConfigError(
            f"DIR: {root} holds no run folders (folders with a config.json); `arturo compare TASK --out {root}` makes some"
        )
    if not unique:
        which = "1 run folder, which" if len(configs) == 1 else f"{len(configs)} run folders, all of which"
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(f"DIR: {root} holds {which} cannot be read:{listed}")
    return unique, problems + twice


def read_all(configs: Sequence[RunConfig], out: Path) -> tuple[list[Record], list[Problem]]:
    """The runs of these configs that exist, and those that cannot be read: from their folders, else from ``OUT/runs.jsonl``."""
    records, problems = [], []
    file = out / NAME
    try:
        kept = {identity(record): record for record in (read_compact(file) if file.exists() else [])}
    except RecordError as error:
        kept = {}
        problems.append(Problem(Path(NAME), str(error)))
    for config in configs:
        path = config.folder
        try:
            records.append(read_run(out / path))
        except FileNotFoundError:
            if (config.task, path.name) in kept:
                records.append(kept[config.task, path.name])
        except (RecordError, OSError) as error:
            problems.append(Problem(path, str(error)))
    return records, problems


def without_copies(records: list[Record], root: Path) -> tuple[list[Record], list[Problem]]:
    """Each config once: one that is over rather than one that is not, else the first."""
    kept: dict[str, Record] = {}
    problems = []
    for record in sorted(records, key=lambda record: record.status == "unfinished"):
        first = kept.setdefault(json.dumps(record.config, sort_keys=True), record)
        if first is not record:
            problems.append(Problem(record.folder.relative_to(root), f"the same run as {first.folder.relative_to(root)}"))
    return [record for record in records if any(record is each for each in kept.values())], problems
