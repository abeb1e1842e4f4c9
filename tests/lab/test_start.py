"""What the command costs before it does anything, and what it says where the laboratory's packages are missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from arturo_lab import cli

# Standard library alone: everything else costs more than Python itself.
HEAVY = ("torch", "numpy", "arturo", *cli.PACKAGES)
PROGRAM = """
import sys
from arturo_lab.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list", "--help"], ["trian"]], ids=" ".join)
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    assert result.returncode == (2 if words == ["trian"] else 0), result.stderr
    imported = result.stderr.splitlines()[-1].split()
    assert "arturo_lab" in imported and not set(HEAVY) & set(imported)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"arturo {version('arturo')}\n"


def test_help_lists_every_command_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, command in cli.COMMANDS.items():
        assert any(line.split()[:1] == [name] and line.endswith(command.about) for line in lines)


def test_the_library_alone_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find_spec: Callable[..., Any] = importlib.util.find_spec
    absent = ("rich", "sklearn")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else find_spec(name, *rest))
    assert cli.main(["train", "digits-mlp"]) == 2
    expected = "arturo: the laboratory needs rich, sklearn; to install it: pip install 'arturo[lab]'\n"
    assert capsys.readouterr().err == expected


def test_the_packages_are_those_of_the_extra() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("lab = "))
    named = re.findall(r'"([\w-]+)', line)
    imported = {"pillow": "PIL", "scikit-learn": "sklearn"}
    assert {imported.get(name, name) for name in named} == set(cli.PACKAGES)


def test_a_flag_is_declared_in_one_place() -> None:
    """An option of the machine reaches the command line, the check, config.json and the search by its field alone."""
    from dataclasses import dataclass, field

    from arturo_lab import fields
    from arturo_lab.commands.parser import Parser, add_options, read_options
    from arturo_lab.runs.machine import Machine

    @dataclass(frozen=True)
    class Bigger(Machine):
        brand_new: int = fields.option(3, "something to count", metavar="N", lowest=1)

    @dataclass(frozen=True, kw_only=True)
    class Options:
        machine: Bigger = field(default_factory=Bigger, metadata={"title": "the machine", "leave_out": ()})

    Options.__annotations__["machine"] = Bigger
    parser = Parser(prog="arturo x")
    add_options(parser, Options)
    assert ["--brand-new", "N", "something", "to", "count", "(default:", "3)"] == parser.format_help().split()[-7:]
    assert read_options(Options, parser.parse_args(["--brand-new", "5"])).machine.brand_new == 5
    assert fields.flat(Bigger())["brand_new"] == 3 and "brand_new" in fields.names(Options)
    assert fields.nested(Options, {"brand_new": 7}).machine.brand_new == 7
    with pytest.raises(ValueError, match=r"^brand_new: must be an integer >= 1, got 0"):
        read_options(Options, parser.parse_args(["--brand-new", "0"]))
