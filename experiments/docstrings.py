"""Real text without a download: the docstrings of Python's own standard library."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import warnings
import zlib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
SEPARATOR = b"\n\n"


@cache
def corpus(split: str = "test") -> tuple[Tensor, Tensor]:
    """Bytes to train on and bytes held out (uint8), one module wholly on one side.

    A tenth of the modules, chosen by the checksum of their path, is held out: unlike a split by position this does not
    move when another Python version adds a module. Repeated docstrings are kept once, so none is on both sides.
    `split="validation"` leaves that tenth out altogether and holds out another one.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    seen: set[str] = set()
    for path in sorted(stdlib.rglob("*.py")):
        module = path.relative_to(stdlib)
        if SKIPPED_FOLDERS.isdisjoint(module.parts):
            tenth = zlib.crc32(module.as_posix().encode()) % 10
            if split == "validation" and tenth == 0:
                continue
            held_out = tenth == (0 if split == "test" else 1)
            for text in module_docstrings(path):
                if text not in seen:
                    seen.add(text)
                    sides[held_out].append(text.encode())
    train, validation = (torch.frombuffer(bytearray(SEPARATOR.join(side)), dtype=torch.uint8) for side in sides)
    return train, validation


def module_docstrings(path: Path) -> list[str]:
    """The docstrings of one source file, unindented, in the order of the source; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules are not our business
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    texts = (ast.get_docstring(node, clean=False) for node in nodes)
    return [cleaned for text in texts if text and (cleaned := inspect.cleandoc(text))]
