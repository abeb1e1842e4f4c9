"""A config file: an optimizer, its arguments, and the training they were found for. Made by ``arturo tune``.

The keys are those of a run's ``config.json``; ``search`` says how the values were found, and no training looks at it::

    {"task": "digits-cnn", "optimizer": "sgd", "epochs": 10, "settings": {"lr": 0.1, "momentum": 0.9}, "search": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.settings import Settings
from arturo_lab.registry import unknown
from arturo_lab.runs import atomic

KEYS = ("task", "optimizer", "epochs", "batch_size", "subset", "settings", "search")
LENGTHS = ("epochs", "batch_size", "subset")


@dataclass(frozen=True)
class ConfigFile:
    """What is in one. ``settings`` need not be complete: the optimizer's own values stand for the others."""

    optimizer: str
    task: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    subset: int | None = None
    settings: Settings = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)

    def lengths(self, task: str) -> dict[str, int | None]:
        """Epochs, batch size and number of images, if they are meant for ``task``: the values may be used for another one, too.

        Example:
            >>> found = ConfigFile("sgd", task="digits-cnn", epochs=10)
            >>> found.lengths("digits-cnn")["epochs"], found.lengths("digits-mlp")["epochs"]
            (10, None)
        """
        return {key: getattr(self, key) if task == self.task else None for key in LENGTHS}


def read_config_file(path: Path) -> ConfigFile:
    """An unknown key, a missing optimizer or anything but an object of JSON is an error that names the file."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"config: cannot read {path} ({error})") from error
    if not isinstance(values, dict) or not isinstance(values.get("optimizer"), str):
        raise ConfigError(f'config: {path} must be an object with an "optimizer", as `arturo tune` writes it')
    for key in values:
        if key not in KEYS:
            raise unknown(f"config {path}", key, KEYS)
    for key in ("settings", "search"):
        if not isinstance(values.get(key, {}), dict):
            raise ConfigError(f"config: {key} of {path} must be an object, got {values[key]!r}")
    return ConfigFile(**values)


def write_config_file(path: Path, content: ConfigFile) -> None:
    """In one go. What is None is left out."""
    values = {key: getattr(content, key) for key in KEYS}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, {key: value for key, value in values.items() if value is not None})
