"""results/: every file stands in the table of results/README.md, with a command that exists, or did at the revision named."""

import json
import re
from pathlib import Path

import pytest
from documented import script_exists

from arturo_lab.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
ROWS = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", (RESULTS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def files(cell):
    """Those that the first column of a row names; ``*`` stands for anything, also for folders below."""
    return {path for pattern in re.findall(r"`([^`]+)`", cell) for path in RESULTS.glob(pattern) if path.is_file()}


def test_every_file_has_a_row():
    listed = set().union(*(files(cell) for cell, _ in ROWS))
    kept = {path for path in RESULTS.rglob("*") if path.is_file() and path.name != "README.md"}
    assert sorted(str(path.relative_to(RESULTS)) for path in kept - listed) == []


@pytest.mark.parametrize("cell, command", ROWS, ids=[cell for cell, _ in ROWS])
def test_every_row_names_files_and_a_command_that_exist(cell, command):
    assert all(any(RESULTS.glob(pattern)) for pattern in re.findall(r"`([^`]+)`", cell))
    scripts = re.findall(r"python ([\w/]+\.py)", command)
    commands = re.findall(r"`arturo ([a-z-]+)", command)
    assert scripts or commands or "`make run`" in command
    assert all(script_exists(script, command) for script in scripts) and all(name in COMMANDS for name in commands)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.jsonl")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_rows_are_json(path):
    """Without NaN, which JSON does not have; also in records whose script is gone."""
    rows = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows and all(isinstance(row, dict) for row in rows)
