"""Imports go lab -> library, never back; the library needs the standard library, torch and numpy, nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = sorted((ROOT / "arturo").rglob("*.py"))
ALLOWED = set(sys.stdlib_module_names) | {"torch", "numpy", "arturo"}


def imported(source: str, package: str) -> set[str]:
    """Absolute dotted names of all a module of ``package`` imports, wherever in the file, `from x import y` as x.y."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def violations(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] not in ALLOWED}


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_library_imports(path: Path) -> None:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    assert violations(imported(path.read_text(encoding="utf-8"), package)) == set()


@pytest.mark.parametrize(
    ("source", "package", "found"),
    [
        ("import rich.table", "arturo", {"rich.table"}),
        ("def f():\n    from scipy import optimize", "arturo", {"scipy.optimize"}),
        ("import arturo_lab.training.train", "arturo", {"arturo_lab.training.train"}),
        ("from arturo_lab import data", "arturo", {"arturo_lab.data"}),
        ("from ..arturo_lab.data import loading", "arturo", {"arturo_lab.data.loading"}),
        ("import math, numpy as np\nfrom torch import Tensor\nfrom .dual import newton", "arturo", set()),
        ("from ..dual import newton\nfrom . import eager", "arturo.kernels", set()),
    ],
)
def test_scan_finds_violations(source: str, package: str, found: set[str]) -> None:
    assert violations(imported(source, package)) == found


def test_library_is_scanned() -> None:
    assert ROOT / "arturo" / "optimizer.py" in LIBRARY
    assert ROOT / "arturo" / "kernels" / "native.py" in LIBRARY


def test_import_arturo_brings_no_laboratory() -> None:
    code = "import sys, arturo; print(*sorted({'rich', 'matplotlib', 'sklearn', 'arturo_lab'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
