"""Options declared once: a dataclass field that carries its help is an option of the command line and a checked value.

A name, a type, a default, limits and a help text stand in one place, the field. From there come the command line
(:mod:`arturo_lab.commands.parser`), the check of a value (:func:`check`) and its place in a JSON object (:func:`flat`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, field
from functools import cache
from typing import Any, TypeVar

from arturo_lab.errors import ConfigError
from arturo_lab.registry import unknown

T = TypeVar("T")
REQUIRED = dataclasses.MISSING


def option(
    default: Any,
    help: str,
    *,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    lowest: float | None = None,
    highest: float | None = None,
    positional: bool = False,
) -> Any:
    """A field with everything that is known of it.

    Args:
        default: ``REQUIRED`` if there is none.
        help: as ``--help`` shows it; the default is added unless it is None or False, whose meaning ``help`` explains.
        metavar: stands for the value in the help.
        choices: the only values.
        lowest, highest: limits of a number, both included.
        positional: an argument without ``--``.
    """
    about = {"metavar": metavar, "choices": tuple(choices), "lowest": lowest, "highest": highest, "positional": positional}
    return field(default=default, metadata={"help": help, **about})


def group(cls: type, title: str, leave_out: Sequence[str] = ()) -> Any:
    """A field that is a dataclass of options itself, shown under a title; ``leave_out`` names those that are not offered."""
    return field(default_factory=cls, metadata={"title": title, "leave_out": tuple(leave_out)})


@cache
def types_of(cls: Any) -> dict[str, tuple[type, bool]]:
    """The type of each field, and whether None is one of its values."""
    result = {}
    for name, hint in typing.get_type_hints(cls).items():
        parts = typing.get_args(hint)
        optional = type(None) in parts
        kind = next(part for part in parts if part is not type(None)) if optional else hint
        result[name] = (kind, optional)
    return result


def option_name(name: str) -> str:
    """As the command line spells it.

    Example:
        >>> option_name("channels_last")
        'channels-last'
    """
    return name.replace("_", "-")


def check(instance: Any, dashes: bool = False) -> None:
    """Hold every declared field to its type and limits. A :class:`ConfigError` names the field, with ``dashes`` the option."""
    types = types_of(instance.__class__)
    for each in dataclasses.fields(instance):
        if "help" in each.metadata:
            name = option_name(each.name) if dashes else each.name
            _check_value(name, getattr(instance, each.name), *types[each.name], each.metadata)


def _check_value(name: str, value: Any, kind: type, optional: bool, about: Mapping[str, Any]) -> None:
    if optional and value is None:
        return
    lowest, highest = about["lowest"], about["highest"]
    if kind is bool and not isinstance(value, bool):
        raise ConfigError(f"{name}: must be true or false, got {value!r}")
    if kind in (int, float) and lowest is not None:
        fits = type(value) is int or (kind is float and type(value) is float)
        if not fits or not value >= lowest:
            raise ConfigError(f"{name}: must be {'an integer' if kind is int else 'a number'} >= {lowest}, got {value!r}")
    if kind in (int, float) and highest is not None and value > highest:
        raise ConfigError(f"{name}: must be at most {highest:,}, got {value!r}")
    if about["choices"] and value not in about["choices"]:
        raise unknown(name, str(value), about["choices"])


def flat(instance: Any) -> dict[str, Any]:
    """A dataclass as one JSON object: the fields of nested ones stand beside its own."""
    result: dict[str, Any] = {}
    for each in dataclasses.fields(instance):
        value = getattr(instance, each.name)
        result.update(flat(value) if dataclasses.is_dataclass(value) else {each.name: value})
    return result


def nested(cls: type[T], values: Mapping[str, Any]) -> T:
    """What :func:`flat` made an object of; a value that is missing has its default."""
    arguments: dict[str, Any] = {}
    types = types_of(typing.cast(Any, cls))
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]
        kind = types[each.name][0]
        if dataclasses.is_dataclass(kind):
            arguments[each.name] = nested(kind, values)
        elif each.name in values:
            arguments[each.name] = values[each.name]
    return cls(**arguments)


def without_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are neither None nor False, which is as good as not named.

    Example:
        >>> without_unset({"lr": 0.1, "nesterov": False, "kl_bound": None, "step": 0})
        {'lr': 0.1, 'step': 0}
    """
    return {name: value for name, value in values.items() if value is not None and value is not False}


def names(cls: type, required: bool = False) -> list[str]:
    """Every key of :func:`flat`; or only those without a default."""
    result: list[str] = []
    for each in dataclasses.fields(cls):
        kind = types_of(cls)[each.name][0]
        if dataclasses.is_dataclass(kind):
            result += names(kind, required)
        elif not required or has_no_default(each):
            result.append(each.name)
    return result


def has_no_default(each: Field[Any]) -> bool:
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
