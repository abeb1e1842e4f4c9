"""An optimizer's arguments as plain data: complete, checked, the same before and after JSON."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS, Constructor
from arturo_lab.registry import unknown

Value: TypeAlias = bool | int | float | str | list[float] | None  # what JSON knows; an infinite float is the text "inf"
Settings: TypeAlias = dict[str, Value]
WITH_DIAGONAL = ("arturo-hessian", "arturo-ggn", "arturo-hutchinson")  # optimizers whose surrogate sees one in every step


def resolve(optimizer: str, task: str, images: int, overrides: Settings | None = None) -> Settings:
    """Every argument the optimizer will be built with: its constructor's defaults, the entry's values, the overrides.

    Complete, so that a stored config means the same when a package changes its defaults.

    Example:
        >>> settings = resolve("sgd", "fmnist-cnn", images=60_000, overrides={"nesterov": True})
        >>> settings["lr"], settings["nesterov"], settings["dampening"]
        (0.071049, True, 0)
        >>> resolve("sgd", "fmnist-cnn", images=60_000, overrides={"momentun": 0.5})
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: set: unknown name 'momentun'; did you mean momentum?
    """
    entry = OPTIMIZERS[optimizer]
    constructor = entry.load()
    settings = {**_defaults(constructor), **{name: _plain(value) for name, value in entry.for_task(task, images).items()}}
    required = _required(constructor)
    for name, value in (overrides or {}).items():
        if name not in settings and name not in required:
            raise unknown("set", name, [*settings, *required])
        like = None if name in _annotated(constructor, Any) else settings.get(name)
        settings[name] = _as_kind(name, value, like, integer=name in _annotated(constructor, int))
    if missing := [name for name in required if name not in settings]:
        raise ConfigError(f"set: {optimizer} has no default for {missing[0]}; give it one with {missing[0]}=VALUE")
    if (proper := whose_surrogate(settings.get("surrogate"))) not in (None, optimizer):
        raise ConfigError(f"set surrogate: {settings['surrogate']} takes more than a setting; choose the optimizer {proper}")
    for name in ("capturable", "differentiable"):
        if settings.get(name) and constructor.__module__.startswith("torch."):  # whose step() would refuse it
            raise ConfigError(f"set {name}: torch's {optimizer} cannot be trained with it in a plain loop; leave it out")
    try:
        constructor([torch.nn.Parameter(torch.zeros(2, 2))], **as_arguments(settings))
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:  # NotImplementedError is a RuntimeError
        raise ConfigError(f"set: {optimizer} does not take {_written(overrides or {})}: {error}") from error
    return settings


def whose_surrogate(name: Value) -> str | None:
    """The optimizer whose training provides what this surrogate needs besides gradients; None if it needs nothing.

    Example:
        >>> whose_surrogate("ggn"), whose_surrogate("adam")
        ('arturo-ggn', None)
    """
    needing = (key for key in WITH_DIAGONAL if OPTIMIZERS[key].values["surrogate"] == name)
    return next(needing, None)


def parse(assignments: Sequence[str]) -> Settings:
    """``name=value`` as the user types it: numbers, true, false, none, text, several numbers with commas.

    Example:
        >>> parse(["lr=0.1", "nesterov=true", "kl_bound=none", "betas=0.9,0.99", "dual=bisection"])
        {'lr': 0.1, 'nesterov': True, 'kl_bound': None, 'betas': [0.9, 0.99], 'dual': 'bisection'}
        >>> parse(["lr"])
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: set: expected name=value, got 'lr'
    """
    settings: Settings = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"set: expected name=value, got {assignment!r}")
        if name in settings:
            raise ConfigError(f"set: {name} is named twice")
        settings[name] = _parse_value(name, text)
    return settings


def as_arguments(settings: Settings) -> dict[str, Any]:
    """The same as a constructor takes it: pairs are tuples, "inf" is a number, a dtype is torch's.

    Example:
        >>> as_arguments({"betas": [0.9, 0.99], "state_dtype": "bfloat16"})
        {'betas': (0.9, 0.99), 'state_dtype': torch.bfloat16}
    """
    arguments: dict[str, Any] = dict(settings)
    for name, value in settings.items():
        if isinstance(value, list):
            arguments[name] = tuple(value)
        elif value == "inf":
            arguments[name] = math.inf
        elif name.endswith("dtype") and isinstance(value, str):
            arguments[name] = getattr(torch, value, value)
    return arguments


def _defaults(constructor: Constructor) -> Settings:
    """Those that are plain data; of any other the constructor keeps its own."""
    result: Settings = {}
    for parameter in _parameters(constructor):
        if parameter.default is not inspect.Parameter.empty:
            with suppress(TypeError, ValueError):
                result[parameter.name] = _plain(parameter.default)
    return result


def _required(constructor: Constructor) -> list[str]:
    return [parameter.name for parameter in _parameters(constructor) if parameter.default is inspect.Parameter.empty]


def _parameters(constructor: Constructor) -> list[inspect.Parameter]:
    _, *parameters = inspect.signature(constructor).parameters.values()  # the first are the weights
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter for parameter in parameters if parameter.kind in named]


def _annotated(constructor: Constructor, kind: Any) -> set[str]:
    """Arguments with this annotation. A default alone says little: SGD's momentum is 0."""
    parameters = inspect.signature(constructor).parameters.values()
    return {p.name for p in parameters if p.annotation in (kind, kind.__name__)}


def _plain(value: Any) -> Value:
    if isinstance(value, (list, tuple)):
        return [float(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"not plain data: {value!r}")


def _parse_value(name: str, text: str) -> Value:
    words: dict[str, Value] = {"true": True, "false": False, "none": None, "inf": "inf"}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        items = [_parse_value(name, item.strip()) for item in text.split(",")]
        numbers = [float(item) for item in items if isinstance(item, (int, float)) and not isinstance(item, bool)]
        if len(numbers) < len(items):
            raise ConfigError(f"set {name}: must be numbers with commas between them, got {text!r}")
        return numbers
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
        raise ConfigError(f"set {name}: must be finite, got {text!r}")
    return text


def _as_kind(name: str, value: Value, like: Value, integer: bool = False) -> Value:
    """``value``, held to the kind of the one it replaces. None fits and replaces anything, and what is annotated ``Any`` takes
    anything: the constructor has the last word.

    1 becomes 1.0 in place of a float and 1.0 becomes 1 in place of an integer: equal settings shall be equal as text.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None:
        return None
    if isinstance(like, bool):
        fits, kind = isinstance(value, bool), "true or false"
    elif integer:
        fits, kind = number and float(value).is_integer(), "an integer"  # type: ignore[arg-type]
    elif isinstance(like, (int, float)) or like == "inf":
        fits, kind = number or value == "inf", "a number"
    elif isinstance(like, list):
        fits, kind = isinstance(value, list) and len(value) == len(like), f"{len(like)} numbers with commas between them"
    elif isinstance(like, str):
        fits, kind = isinstance(value, str), "a word"
    else:
        fits, kind = True, ""
    if not fits:
        raise ConfigError(f"set {name}: must be {kind}, got {value!r}")
    if number and not (isinstance(like, int) and float(value).is_integer()):  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    return int(value) if number else value  # type: ignore[arg-type]


def _written(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "its own values"
