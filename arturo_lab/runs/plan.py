"""Which trainings a comparison consists of: every optimizer on every task and seed, checked before the first one runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers import settings
from arturo_lab.optimizers.settings import Settings
from arturo_lab.registry import unknown
from arturo_lab.runs.config import RunConfig

MOST_SEEDS = 10_000  # nobody trains more, and every run is planned before the first one starts


def plan(
    tasks: Sequence[str],
    optimizers: Sequence[str],
    seeds: Sequence[int],
    epochs: int | None = None,
    *,
    overrides: Mapping[str, Settings] | None = None,
    **options: Any,
) -> list[RunConfig]:
    """One config for each task, seed and optimizer, in this order of nesting.

    The seeds are outside the optimizers, so that a machine that slows down or speeds up does so for every optimizer alike,
    and an interrupted comparison has whole pairs.

    Args:
        tasks, optimizers, seeds: what to combine; none may be named twice.
        epochs: None is each task's own.
        overrides: arguments by optimizer.
        options: of :meth:`RunConfig.for_task`, the same for all.
    """
    for key, names in (("task", tasks), ("optimizers", optimizers), ("seeds", seeds)):
        once(key, names)
    overrides = overrides or {}
    return [
        RunConfig.for_task(task, optimizer, seed, epochs, overrides=overrides.get(optimizer), **options)
        for task in tasks
        for seed in seeds
        for optimizer in optimizers
    ]


def once(key: str, names: Sequence[object]) -> None:
    """Nothing may be named twice."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(f"{key}: {name} is named twice in {', '.join(map(str, names))}")


def parse_seeds(text: str) -> list[int]:
    """A count, or the seeds themselves with commas.

    Example:
        >>> parse_seeds("3"), parse_seeds("0,5,8"), parse_seeds("7,")
        ([0, 1, 2], [0, 5, 8], [7])
        >>> parse_seeds("1,2,1")
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: seeds: 1 is named twice in 1, 2, 1
    """
    parts = [part.strip() for part in text.split(",")]
    if parts[-1] == "" and len(parts) > 1:
        parts.pop()
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"seeds: must be a count such as 3 or seeds such as 0,5,8, got {text!r}")
    if max(map(len, parts)) > 19:  # 2**63 has 19 digits
        raise ConfigError(f"seeds: must be below 2**63, got {text}")
    numbers = [int(part) for part in parts]
    if "," not in text:
        if numbers[0] < 1:
            raise ConfigError(f"seeds: must be at least 1, got {text}")
        if numbers[0] > MOST_SEEDS:
            raise ConfigError(f"seeds: a count must be at most {MOST_SEEDS:,}, got {text}; a single seed is written {text},")
        numbers = list(range(numbers[0]))
    once("seeds", numbers)
    return numbers


def parse_overrides(assignments: Sequence[str], optimizers: Sequence[str]) -> dict[str, Settings]:
    """``OPTIMIZER.name=value`` as the user types it.

    Example:
        >>> parse_overrides(["sgd.lr=0.5", "sgd.nesterov=true"], ["sgd", "arturo"])
        {'sgd': {'lr': 0.5, 'nesterov': True}}
        >>> parse_overrides(["lr=0.5"], ["sgd", "arturo"])
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: set: expected OPTIMIZER.name=value, got 'lr=0.5'
    """
    by_optimizer: dict[str, list[str]] = {}
    for assignment in assignments:
        left, equals, value = assignment.partition("=")
        optimizer, dot, name = left.rpartition(".")  # the last: file.py:Class is an optimizer, too
        if not dot or not equals:
            raise ConfigError(f"set: expected OPTIMIZER.name=value, got {assignment!r}")
        if optimizer not in optimizers:
            raise unknown("set", optimizer, optimizers)
        by_optimizer.setdefault(optimizer, []).append(f"{name}={value}")
    return {optimizer: settings.parse(words) for optimizer, words in by_optimizer.items()}
