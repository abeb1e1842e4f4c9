"""How a hyperparameter is declared: once, with its default, its range, its letter and its meaning.

Defaults, validation, the constants that kernels get and the tables of docs/notation.md come from the declarations in
:mod:`arturo.hyperparameters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

Group = Mapping[str, Any]


class Rule(NamedTuple):
    """What a value may be: a test, and the words for it in an error message."""

    test: Callable[[Any], bool]
    words: str

    def or_none(self, meaning: str = "") -> Rule:
        """None is allowed as well, with this ``meaning``."""
        words = f"{self.words}, or None {meaning}" if meaning else f"{self.words} or None"
        return Rule(lambda value: value is None or self.test(value), words)


class Hyperparameter(NamedTuple):
    """One argument of an optimizer.

    Attributes:
        name: of the argument, and of its key in a parameter group.
        default: of the constructor.
        rule: what it may be.
        meaning: with its unit, for docs/notation.md.
        used: where the code uses it.
        symbol: the paper's.
        letter: the field of :class:`arturo.kernels.batch.Constants` that carries it; "" for none.
        constant: that field's value from a parameter group. None: the hyperparameter itself.
        code: its name in the code, if it is not a constant of the kernels.
        note: on the default, for docs/notation.md.
    """

    name: str
    default: Any
    rule: Rule
    meaning: str
    used: str
    symbol: str = "–"
    letter: str = ""
    constant: Callable[[Group], Any] | None = None
    code: str = ""
    note: str = ""


class Hyperparameters(Mapping[str, Hyperparameter]):
    """The declarations of one optimizer.

    Args:
        declared: one by one, in the order of the table.
        pairs: raise ValueError for values that have no meaning together.
    """

    def __init__(self, declared: Iterable[Hyperparameter], *pairs: Callable[[Group], None]) -> None:
        self._declared = {one.name: one for one in declared}
        self._pairs = pairs
        self._constants = [one for one in self._declared.values() if one.letter]
        self.default = {name: one.default for name, one in self._declared.items()}

    def __getitem__(self, name: str) -> Hyperparameter:
        return self._declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def check(self, group: Group) -> None:
        """Raise ValueError for the first value of ``group`` that is out of its range, or for a pair without meaning."""
        for name, one in self._declared.items():
            if name == "lr":
                _check_lr(group["lr"])
            elif not one.rule.test(group[name]):
                raise ValueError(f"Invalid {name} value: {group[name]!r} (must be {one.rule.words})")
        for check in self._pairs:
            check(group)

    def chosen(self, arguments: Group) -> dict[str, Any]:
        """Those of a constructor's ``locals()`` that are declared."""
        return {name: arguments[name] for name in self._declared}

    def constants(self, group: Group) -> dict[str, Any]:
        """The kernels' constants by their letters."""
        return {one.letter: group[one.name] if one.constant is None else one.constant(group) for one in self._constants}

    def table(self) -> str:
        """The table of docs/notation.md."""
        lines = ["| symbol | in the code | argument | default | unit and meaning | used in |", "|---|---|---|---|---|---|"]
        for one in self._declared.values():
            code = one.code or (f"`{one.letter}`" if one.letter else "–")
            default = f"`{one.default!r}`".replace("'", '"') + (f": {one.note}" if one.note else "")
            lines.append(f"| {one.symbol} | {code} | `{one.name}` | {default} | {one.meaning} | {one.used} |")
        return "\n".join(lines)


# ---- rules


def is_number(value: Any) -> bool:
    """A finite real number, and no bool."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond the floats
        return False


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pair_below_1(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(is_number(x) and 0 <= x < 1 for x in value)


POSITIVE = Rule(lambda value: is_number(value) and value > 0, "a finite number > 0")
NOT_NEGATIVE = Rule(lambda value: is_number(value) and value >= 0, "a finite number >= 0")
PAIR_BELOW_1 = Rule(_pair_below_1, "two numbers in [0, 1)")
BOOLEAN = Rule(lambda value: isinstance(value, bool), "True or False")
SWITCH = Rule(lambda value: value is None or isinstance(value, bool), "True, False or None")


def more_than(least: int) -> Rule:
    """An integer above this one."""
    return Rule(lambda value: _whole(value) and value > least, f"an integer > {least}")


def one_of(*names: str) -> Rule:
    """One of these strings."""
    return Rule(lambda value: value in names, f"one of {', '.join(map(repr, names))}")


def _check_lr(lr: Any) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if lr.device.type == "meta":
            return
        lr = lr.item()
    if not NOT_NEGATIVE.test(lr):
        raise ValueError(f"Invalid learning rate: {lr!r} (lr must be a finite number >= 0)")


def check_number(name: str, value: Any, meaning: str, zero: bool = False) -> None:
    """Raise ValueError unless ``value`` is a finite number > 0, or >= 0 where ``zero`` is allowed."""
    rule = NOT_NEGATIVE if zero else POSITIVE
    if not rule.test(value):
        raise ValueError(f"Invalid {name} value: {value!r} (must be {rule.words}: {meaning})")


def plain(options: Group) -> dict[str, Any]:
    """The same with NumPy's and other numbers as floats: ``torch.load(weights_only=True)`` takes nothing else.

    Example:
        >>> from fractions import Fraction
        >>> plain({"lr": Fraction(1, 2), "betas": [0, Fraction(1, 4)], "block": 128})
        {'lr': 0.5, 'betas': (0.0, 0.25), 'block': 128}
    """
    numbers = {
        name: float(value) if type(value) not in (bool, int, float) and isinstance(value, Real) else value
        for name, value in options.items()
    }
    for name in ("averaging", "betas"):
        pair: Any = numbers.get(name)
        if pair is not None and not (type(pair) is tuple and all(type(x) is float for x in pair)):
            numbers[name] = tuple(float(x) for x in pair)
    return numbers
