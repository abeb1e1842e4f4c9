"""Imports go lab -> library, never back, and down the library's layers; docs/architecture.md lists all modules.

The library needs the standard library, torch and numpy only.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import arturo

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
        ("import math, numpy as np\nfrom torch import Tensor\nfrom .core.dual import newton", "arturo", set()),
        ("from ..core.dual import newton\nfrom . import eager", "arturo.kernels", set()),
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


# What a folder of the library may import besides itself: modules of arturo/, or other folders. The modules of arturo/ itself
# that stand in no list are the top, which nothing below imports.
BELOW = {
    "core": set(),
    "surrogates": {"core"},
    "kernels": {"core", "surrogates", "kronecker"},
    "posterior": {
        "core", "surrogates", "kernels", "declaration", "hyperparameters", "loss_scale", "sharding", "state", "step_info",
    },
}  # fmt: skip


def upward(folder: str, names: set[str]) -> set[str]:
    """What a module in this ``folder`` imports from layers that are not below it."""
    ours = {name for name in names if name.startswith("arturo.")}
    return {name for name in ours if name.split(".")[1] not in BELOW[folder] | {folder}}


@pytest.mark.parametrize("folder", BELOW)
def test_folders_are_layers(folder: str) -> None:
    """So there are no cycles between them."""
    for path in (ROOT / "arturo" / folder).rglob("*.py"):
        names = imported(path.read_text(encoding="utf-8"), ".".join(path.relative_to(ROOT).parent.parts))
        assert upward(folder, names) == set(), path.name


@pytest.mark.parametrize("folder", BELOW)
def test_modules_below_a_folder_do_not_import_it(folder: str) -> None:
    above = [other for other, below in BELOW.items() if folder in below] + [folder]
    for module in BELOW[folder] - set(BELOW):
        names = imported((ROOT / "arturo" / f"{module}.py").read_text(encoding="utf-8"), "arturo")
        assert not any(name.startswith(tuple(f"arturo.{other}" for other in above)) for name in names), module


def test_every_folder_is_a_layer() -> None:
    assert {path.parent.name for path in LIBRARY if path.parent.parent == ROOT / "arturo"} == set(BELOW)


@pytest.mark.parametrize(
    ("source", "folder", "found"),
    [
        ("from arturo.state import HALF", "kernels", {"arturo.state.HALF"}),
        ("from arturo.kernels import batch", "surrogates", {"arturo.kernels.batch"}),
        ("from . import kalman\nfrom arturo.core import dual", "surrogates", set()),
        ("from arturo import optimizer", "posterior", {"arturo.optimizer"}),
    ],
)
def test_scan_finds_imports_upward(source: str, folder: str, found: set[str]) -> None:
    assert upward(folder, imported(source, f"arturo.{folder}")) == found


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
OF_LIBRARY, OF_LABORATORY = PAGE.split("## The laboratory")


def test_every_module_is_documented_or_private() -> None:
    """By its path in docs/architecture.md, or by an underscore."""
    paths = [path.relative_to(ROOT / "arturo") for path in LIBRARY]
    public = {path.as_posix() for path in paths if path.name != "__init__.py" and not path.name.startswith("_")}
    assert public - set(re.findall(r"`([\w/]+\.py)`", OF_LIBRARY)) == set()
    rows = re.findall(r"^\| (`[^|]*) \|", OF_LIBRARY, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", " ".join(rows))) == public


def test_every_part_of_the_laboratory_is_documented() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", OF_LABORATORY, re.MULTILINE)
    lab = ROOT / "arturo_lab"
    folders = {f"{path.name}/" for path in lab.iterdir() if (path / "__init__.py").exists()}
    assert set(rows) == folders | {path.name for path in lab.glob("*.py") if not path.name.startswith("_")}


def test_the_public_modules_are_those_the_page_names() -> None:
    """What ``arturo`` exports exists, and so does what the page adds to it."""
    (sentence,) = re.findall(r"The public API is what `arturo` exports, plus (.*?)\.\s", OF_LIBRARY, re.DOTALL)
    names = re.findall(r"`([\w.]+)`", sentence)
    assert names and all(pkgutil.resolve_name(name) for name in names)
    assert all(hasattr(arturo, name) for name in arturo.__all__)
