"""A table of named things that answers a misspelt name with the nearest ones."""

from __future__ import annotations

import difflib
from typing import NoReturn, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A name or value from the user that the laboratory cannot take. The message starts with the key at fault."""


class Registry(dict[str, T]):
    """A dict from names to ``T`` whose missing key is a :class:`ConfigError` that helps.

    Example:
        >>> tasks = Registry("task", {"digits-mlp": 1, "digits-cnn": 2})
        >>> tasks["digits-mpl"]
        Traceback (most recent call last):
        ...
        arturo.lab.registry.ConfigError: task: unknown name 'digits-mpl'; did you mean digits-mlp or digits-cnn?
        >>> tasks["cifar"]
        Traceback (most recent call last):
        ...
        arturo.lab.registry.ConfigError: task: unknown name 'cifar'; known: digits-mlp, digits-cnn
    """

    def __init__(self, key: str, entries: dict[str, T]) -> None:
        super().__init__(entries)
        self.key = key  # what the user calls the choice: the key of the config, the option of the command

    def __missing__(self, name: str) -> NoReturn:
        near = difflib.get_close_matches(name.lower(), self, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(self)}"
        raise ConfigError(f"{self.key}: unknown name {name!r}; {hint}")
