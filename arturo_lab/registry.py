"""A table of named things that answers a misspelt name with the nearest ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TypeVar

from arturo_lab.errors import ConfigError as ConfigError  # also importable from here

T = TypeVar("T")


class Registry(dict[str, T]):
    """A dict from names to ``T`` whose missing key is a :class:`ConfigError` that helps.

    Example:
        >>> tasks = Registry("task", {"digits-mlp": 1, "digits-cnn": 2})
        >>> tasks["digits-mpl"]
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: task: unknown name 'digits-mpl'; did you mean digits-mlp or digits-cnn?
        >>> tasks["cifar"]
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: task: unknown name 'cifar'; known: digits-mlp, digits-cnn
    """

    def __init__(self, key: str, entries: dict[str, T], beyond: Callable[[str], T | None] = lambda name: None) -> None:
        super().__init__(entries)
        self.key = key  # what the user calls the choice: the key of the config, the option of the command
        self.beyond = beyond  # what a name means that is not in the table; None: nothing

    def __missing__(self, name: str) -> T:
        other = self.beyond(name)
        if other is None:
            raise unknown(self.key, name, self)
        return other

    def find(self, name: str) -> T | None:
        """What a name means, as ``[name]`` does; None if it means nothing here, as that of a file that is gone.

        Example:
            >>> tasks = Registry("task", {"digits-mlp": 1})
            >>> tasks.find("digits-mlp"), tasks.find("cifar")
            (1, None)
        """
        try:
            return self[name]
        except ConfigError:
            return None


def unknown(key: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the known ones."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return ConfigError(f"{key}: unknown name {name!r}; {hint}")
