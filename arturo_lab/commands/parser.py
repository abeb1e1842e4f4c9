"""The command line of a dataclass: an option for each field that declares one (:mod:`arturo_lab.fields`)."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from arturo_lab import fields
from arturo_lab.errors import ConfigError
from arturo_lab.fields import option_name

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; `{self.prog} --help` lists the options")


def add_options(parser: argparse._ActionsContainer, cls: type, leave_out: Sequence[str] = ()) -> None:
    """Add every option that ``cls`` and the dataclasses in it declare."""
    types = fields.types_of(cls)
    for each in dataclasses.fields(cls):
        about, (kind, optional) = each.metadata, types[each.name]
        if "title" in about:
            section = parser.add_argument_group(about["title"]) if about["title"] else parser
            add_options(section, kind, about["leave_out"])
        elif "help" in about and each.name not in leave_out:
            _add(parser, each, kind, optional)


def read_options(cls: type[T], namespace: argparse.Namespace) -> T:
    """The dataclass that the parsed words describe, checked."""
    result = fields.nested(cls, vars(namespace))
    for part in (result, *(getattr(result, each.name) for each in dataclasses.fields(cls))):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(part):
            fields.check(part, dashes=True)
    return result


def _add(parser: argparse._ActionsContainer, each: dataclasses.Field[Any], kind: type, optional: bool) -> None:
    about = each.metadata
    if kind is bool:
        action: Any = argparse.BooleanOptionalAction if optional else "store_true"  # None, --x and --no-x are three things
        parser.add_argument(f"--{option_name(each.name)}", action=action, default=each.default, help=about["help"])
        return
    many = typing.get_origin(kind) is tuple
    item = typing.get_args(kind)[0] if many else kind
    options: dict[str, Any] = {"type": CONVERTERS[item], "metavar": about["metavar"], "help": _help(each)}
    if about["positional"]:
        # The field's name is the destination; the metavar stands in the usage line.
        parser.add_argument(each.name, nargs="+" if many else None, **options)
        return
    if many:
        options |= {"nargs": "+", "action": "extend" if each.default == () else "store"}
    required = fields.has_no_default(each)
    default = [] if many and each.default == () else None if required else each.default
    parser.add_argument(f"--{option_name(each.name)}", default=default, required=required, **options)


def _help(each: dataclasses.Field[Any]) -> str:
    text, default = each.metadata["help"], each.default
    if default in (None, (), dataclasses.MISSING):
        return str(text)
    shown = " ".join(default) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})".replace("%", "%%")


def _text(word: str) -> str:
    if not word:
        raise argparse.ArgumentTypeError("must not be empty")
    return word


def _path(word: str) -> Path:
    return Path(_text(word))


def _integer(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {word!r}") from None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {word!r}") from None


CONVERTERS: dict[type, Any] = {str: _text, Path: _path, int: _integer, float: _number}
