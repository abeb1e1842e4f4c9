"""What a result was made with, besides its config: data, code, threads. A run made with something else is another run.

Recorded as ``made_with`` in environment.json:

    data        a digest of the content, before subset and fold
    optimizer   the source of its class: a package's version, the digest of a file, the digest of arturo
    task        the digest of what the task declares and of the file that brings it
    laboratory  the digest of the code that trains: loop, order, networks, losses, augmentation
    threads     of the CPU

Digests of Python files do not see comments, docstrings and layout.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

import arturo
import arturo_lab
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import as_arguments
from arturo_lab.references import source_file
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS

LABORATORY = (  # what has a part in the numbers of a training
    "data/augment.py",
    "data/examples.py",
    "data/folds.py",
    "data/inputs.py",
    "tasks/metrics.py",
    "tasks/models.py",
    "tasks/networks.py",
    "tasks/resnet.py",
    "tasks/schedules.py",
    "training/batches.py",
    "training/order.py",
    "training/train.py",
)
DECLARED = ("epoch_steps", "replacement", "reconstructs", "schedule", "loss", "inputs")  # of a task; the rest is in the config


def made_with(config: RunConfig, data: str, threads: int) -> dict[str, Any]:
    """All of it. ``data`` is the digest of the examples, ``threads`` what torch uses."""
    return {**code(config), "data": data, "threads": threads}


def code(config: RunConfig) -> dict[str, Any]:
    """The part that needs no data."""
    return {"optimizer": optimizer_source(config), "task": task_source(config.task), "laboratory": laboratory()}


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words. What only one of the two knows does not count: an older run recorded less.

    Example:
        >>> differences({"data": "aa", "threads": 2}, {"data": "bb", "threads": 2, "task": "cc"})
        ['data was aa and is bb']
    """
    both = (key for key in now if recorded.get(key) is not None and now[key] is not None)
    return [f"{key} was {recorded[key]} and is {now[key]}" for key in both if recorded[key] != now[key]]


def optimizer_source(config: RunConfig) -> str:
    """Of every class that the optimizer inherits from, up to torch's base."""
    constructor = OPTIMIZERS[config.optimizer].load()
    with torch.random.fork_rng([]):
        built = constructor([torch.nn.Parameter(torch.zeros(2, 2))], **as_arguments(config.settings))
    classes = [each for each in type(built).__mro__ if issubclass(each, Optimizer) and each is not Optimizer]
    made_by = [] if isinstance(constructor, type) else [inspect.unwrap(constructor)]
    return ", ".join(dict.fromkeys(module_source(each.__module__) for each in (*made_by, *classes)))


def task_source(name: str) -> str:
    task, file = TASKS[name], source_file("task", name)
    values = {key: getattr(task, key) for key in DECLARED}
    named = {key: getattr(value, "__name__", value) for key, value in values.items()}
    metrics = [(metric.name, metric.better) for metric in task.metrics]
    declared = hashlib.sha256(repr((named, metrics)).encode()).hexdigest()[:12]
    return declared if file is None else f"{declared}, {file.name} {digest([file])}"


@cache
def laboratory() -> str:
    folder = Path(arturo_lab.__file__).parent
    return digest(folder / name for name in LABORATORY)


@cache
def module_source(name: str) -> str:
    """A package with its version; arturo, and what is in no package, with a digest."""
    top = name.partition(".")[0]
    if top == "arturo":
        folder = Path(arturo.__file__).parent
        return f"arturo {digest(path for kind in ('py', 'cpp', 'h') for path in sorted(folder.rglob(f'*.{kind}')))}"
    file = getattr(sys.modules[name], "__file__", None)
    if top == "arturo_lab" and file is not None:
        return f"{Path(file).name} {digest([Path(file)])}"
    for distribution in packages_distributions().get(top, ()):
        try:
            return f"{distribution} {version(distribution)}"
        except PackageNotFoundError:
            continue
    return name if file is None else f"{Path(file).name} {digest([Path(file)])}"


def digest(files: Iterable[Path]) -> str:
    """Twelve hexadecimal digits of what the files do."""
    result = hashlib.sha256()
    for path in files:
        raw = path.read_bytes()
        result.update(path.name.encode() + b"\n" + (essence(raw) if path.suffix == ".py" else raw))
    return result.hexdigest()[:12]


def essence(source: bytes) -> bytes:
    """Python source without comments, docstrings and layout.

    Example:
        >>> essence(b'def f(x):\\n    "Half."\\n    return x / 2  # a comment') == essence(b"def f(x): return (x / 2)")
        True
    """
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree).encode()
