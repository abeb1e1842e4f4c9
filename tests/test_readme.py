"""What people read first is true: the README quotes the code, and links, files and commands in the pages exist."""

import re
from pathlib import Path

import pytest
from documented import script_exists

from arturo_lab.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "experiments" / "LOG.md"]


def test_readme_quotes_the_minimal_optimizer():
    (quoted,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    source = [line.strip() for line in (ROOT / "arturo" / "minimal.py").read_text(encoding="utf-8").splitlines()]
    lines = [line.strip() for line in quoted.splitlines() if line.strip() not in ("", "...")]
    assert len(lines) > 8
    assert [line for line in lines if line not in source] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_and_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    scripts = re.findall(r"python ((?:examples|benchmarks|experiments|tests)/\w+\.py)", text)
    assert [script for script in scripts if not script_exists(script, text)] == []
    commands = re.findall(r"(?:^|`)arturo ([a-z-]+)", text, re.MULTILINE)
    assert [command for command in commands if command not in COMMANDS] == []
