"""What people read first is true: quotes of the league and the code, and links, files and commands in the pages exist.

python tests/test_readme.py    # writes the README's first table anew
"""

import re
from pathlib import Path

import pytest
from documented import script_exists

from arturo_lab.cli import COMMANDS
from arturo_lab.tasks.catalog import TASKS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "experiments" / "LOG.md"]


def league_table() -> str:
    """The first table of the league without the columns that need explaining."""
    lines = (ROOT / "results" / "league" / "league.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| task | AdamW (warm-up), best |"))
    rows = [
        "| task | steps | metric | AdamW at its best | AdaArturo, untouched | AdamW's result after | of fused AdamW's time |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for line in lines[first + 2 : lines.index("", first)]:
        task, adamw, ours, _, arrival, time, _, metric, steps, _ = line.strip("| ").split(" | ")
        task, mark = (task.removesuffix(" *"), " *") if task.endswith(" *") else (task, "")
        share = re.search(r"\((\d+)%", arrival)
        after, time = (f"{share[1]} %", time.replace("%", " %")) if share else ("never", "-")
        after += ", then worse" if share and adamw.startswith("**") else ""
        rows.append(f"| {TASKS[task].title}{mark} | {steps} | {metric} | {adamw} | {ours} | {after} | {time} |")
    return "\n".join(rows)


def with_league_table(page: str) -> str:
    """The page with this table in its place."""
    place = r"(<!-- league -->\n\n).*?(\n\n<!-- end -->)"
    found = re.subn(place, lambda m: m[1] + league_table() + m[2], page, flags=re.DOTALL)
    assert found[1] == 1, f"README.md has {found[1]} places for the league's table"
    return found[0]


def test_readme_quotes_the_league():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert league_table().count("\n") == 14 and with_league_table(page) == page, "run: python tests/test_readme.py"


def test_the_derivation_quotes_the_minimal_optimizer():
    page = (ROOT / "docs" / "derivation-adaptive.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
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


if __name__ == "__main__":
    README = ROOT / "README.md"
    README.write_text(with_league_table(README.read_text(encoding="utf-8")), encoding="utf-8")
