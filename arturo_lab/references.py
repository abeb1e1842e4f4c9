"""Names that are in no table: ``file.py:NAME``, ``package.module:NAME``, or an entry point of an installed package."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from arturo_lab.errors import ConfigError
from arturo_lab.registry import unknown


def look_up(key: str, name: str) -> Any:
    """The object that ``name`` refers to; None if it is no reference at all.

    Args:
        key: what the user calls the choice, ``optimizer`` or ``task``: every error starts with it. Entry points are those of
            the group ``arturo_lab.optimizers`` or ``arturo_lab.tasks``.
        name: as the user typed it.

    Example:
        >>> look_up("optimizer", "torch.optim:Adagrad").__name__
        'Adagrad'
        >>> look_up("optimizer", "torch.optim:Adagrat")
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: optimizer torch.optim: unknown name 'Adagrat'; did you mean Adagrad?
    """
    for point in _points(f"arturo_lab.{key}s", name):
        try:
            return point.load()
        except Exception as error:
            raise ConfigError(f"{key}: cannot load the entry point {name} = {point.value} ({_message(error)})") from error
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return None
    if not place or not attribute.isidentifier():
        raise ConfigError(f"{key}: expected file.py:NAME or package.module:NAME, got {name!r}")
    module = _file(key, Path(place)) if place.endswith(".py") else _module(key, place)
    if not hasattr(module, attribute):
        public = [each for each in vars(module) if not each.startswith("_")]
        raise unknown(f"{key} {place}", attribute, public) if public else ConfigError(f"{key}: {place} defines nothing")
    return getattr(module, attribute)


def source_file(key: str, name: str) -> Path | None:
    """The file that brings what ``name`` refers to; None for one of ours."""
    place, colon, _ = name.rpartition(":")
    for point in _points(f"arturo_lab.{key}s", name):
        place, colon = point.module, ":"
    if not colon:
        return None
    file = _file(key, Path(place)).__file__ if place.endswith(".py") else _module(key, place).__file__
    return None if file is None else Path(file)


def folder_name(name: str) -> str:
    """A reference as a part of a folder's name.

    Example:
        >>> folder_name("mine/lion.py:Lion"), folder_name("po:Lion"), folder_name("adamw")
        ('lion.Lion', 'po.Lion', 'adamw')
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return name
    stem = Path(place).stem if place.endswith(".py") else place
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{stem}.{attribute}")


def _points(group: str, name: str) -> list[EntryPoint]:
    return [point for point in _all_points(group, tuple(sys.path)) if point.name == name]


@lru_cache(maxsize=8)
def _all_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Looking through every installed package takes a while: once for each place where they may be."""
    return tuple(entry_points(group=group))


def _file(key: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{key}: {path} does not exist")
    path = path.resolve()
    return _run_file(key, path, hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:12])


@cache
def _run_file(key: str, path: Path, content: str) -> ModuleType:
    """Import a file under a name that nothing else has: once in a process, and again when its content has changed."""
    name = f"arturo_lab_file_{path.stem}_{content}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{key}: cannot import {path} ({_message(error)})") from error
    return module


def _module(key: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{key}: cannot import {name} ({_message(error)})") from error


def _message(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
