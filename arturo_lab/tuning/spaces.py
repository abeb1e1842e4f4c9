"""The search spaces, with the reason for each end. Stated here and nowhere else.

**paper**: the arguments that the paper tuned (tables ``tab:hp_itropt``, ``tab:hp_sgd``, ``tab:hp_adam``, ``tab:hp_adamw``). It
does not print its ranges. Ours hold every value that it found, with room on both sides.

**fair**: three for every optimizer, and the same three: how far a step goes, how long it remembers, how strongly it pulls the
weights to zero. The lengths of the ranges are alike, too: three decades of step, memories of 2 to 100 steps, four decades
of decay, around what people use. No optimizer gets more to tune than another, and no narrower hint where to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import Settings
from arturo_lab.optimizers.tuned import ABSOLUTE


@dataclass(frozen=True)
class Dimension:
    """One number to search.

    Example:
        >>> lr = Dimension("lr", 0.001, 0.1, "two decades")
        >>> round(lr.at(0.5), 6), round(lr.share(0.01), 6)
        (0.01, 0.5)
    """

    name: str
    low: float
    high: float
    why: str
    log: bool = True  # equal factors count alike, else equal differences
    off_at_low: bool = False  # the low end does as good as nothing, so an optimum there is no optimum at an edge

    def at(self, share: float) -> float:
        """The value at a share of the way from low to high."""
        if self.log:
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)

    def share(self, value: float) -> float:
        """How far on the way from low to high a value is."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def edge(self, value: float, margin: float = 0.05) -> str | None:
        """What to say of an optimum that is within ``margin`` of an end; None for one inside.

        Example:
            >>> Dimension("lr", 0.001, 0.1, "").edge(0.099)
            'lr 0.099 is at the upper end of 0.001 to 0.1: the best may lie beyond'
        """
        share = self.share(value)
        end = "upper" if share > 1 - margin else "lower" if share < margin and not self.off_at_low else None
        where = f"is at the {end} end of {self.low:g} to {self.high:g}: the best may lie beyond"
        return None if end is None else f"{self.name} {value:.3g} {where}"


@dataclass(frozen=True)
class Space:
    """What to search, and the optimizer's arguments that follow from it."""

    dimensions: tuple[Dimension, ...]
    settings: Callable[[Mapping[str, float]], Settings]

    def point(self, shares: tuple[float, ...]) -> dict[str, float]:
        """The point of the space at shares of the way along each dimension."""
        return {dimension.name: dimension.at(share) for dimension, share in zip(self.dimensions, shares, strict=True)}


def _adam(x: Mapping[str, float]) -> Settings:
    beta2 = 1 - x["1-beta2"] if "1-beta2" in x else 0.999
    return {"lr": x["lr"], "betas": [1 - x["1-beta1"], beta2], "weight_decay": x["weight_decay"]}


def _adaarturo(x: Mapping[str, float]) -> Settings:
    return {"lr": x["lr"], "betas": [1 - x["1-beta1"], 0.995], "weight_decay": x["weight_decay"]}


def _sgd(x: Mapping[str, float]) -> Settings:
    return {"lr": x["lr"], "momentum": 1 - x["1-momentum"], "weight_decay": x["weight_decay"]}


def _arturo_fair(x: Mapping[str, float]) -> Settings:
    # The defaults, by name: a task with tuned values of the paper would put those in their place.
    defaults: Settings = {"kl_bound": None, "prior_weight": 0.1, "noise": 1.0, "initial_curvature": None}
    return {**defaults, "lr": x["lr"], "drift": x["drift"], "weight_decay": x["weight_decay"]}


def _decay(low: float, high: float, why: str) -> Dimension:
    return Dimension("weight_decay", low, high, why, off_at_low=True)


_PAPER_SGD = Space(
    (
        Dimension("lr", 1e-3, 1.0, "found 0.018 to 0.14"),
        Dimension("1-momentum", 0.01, 0.3, "found momentum 0.854 to 0.947; 0.9 is the middle"),
        _decay(1e-6, 1e-2, "found 1.6e-4 to 2e-3; 1e-6 is as good as none"),
    ),
    _sgd,
)
_PAPER_ADAM = Space(
    (
        Dimension("lr", 1e-4, 0.2, "found 0.001 to 0.045"),
        Dimension("1-beta1", 0.01, 0.3, "found beta1 0.851 to 0.945"),
        Dimension("1-beta2", 1e-7, 0.1, "found beta2 0.990 to 0.999999"),
        _decay(1e-7, 1e-2, "found 0 to 2e-3; 1e-7 is as good as none"),
    ),
    _adam,
)
_PAPER_ARTURO = Space(
    (
        Dimension("kl_bound", 3e-4, 1.0, "epsilon; found 0.0028 to 0.086"),
        Dimension("prior_weight", 5e-3, 20.0, "rho; found 0.059 to 1.7"),
        Dimension("noise", 0.1, 100.0, "r; found 1.2 to 9.3"),
        Dimension("drift", 2e-4, 1.0, "q; found 0.0025 to 0.089"),
        _decay(1e-7, 1e-2, "found 0 to 7e-4; 1e-7 is as good as none"),
    ),
    lambda x: {**ABSOLUTE, **x},
)

_MEMORY = "remembers 2 to 100 steps; 0.1 is the usual value"
_ADAARTURO = Space(
    (
        Dimension("lr", 1e-4, 0.1, "as Adam's: the unit is the same"),
        Dimension("1-beta1", 0.01, 0.5, _MEMORY),
        _decay(1e-4, 1.0, "as AdamW's: times lr it is a share of the weight"),
    ),
    _adaarturo,
)
_FAIR_ADAMW = Space(
    (
        Dimension("lr", 1e-4, 0.1, "as Adam's"),
        Dimension("1-beta1", 0.01, 0.5, _MEMORY),
        _decay(1e-4, 1.0, "four decades around 0.01, the default: times lr it is a share of the weight"),
    ),
    _adam,
)


def _peer(lr: tuple[float, float], decay: tuple[float, float], why: str, settings: Callable[..., Settings]) -> Space:
    """The same three for other people's optimizers; the ranges of lr lie around what their authors recommend."""
    return Space(
        (
            Dimension("lr", *lr, why),
            Dimension("1-beta1", 0.01, 0.5, _MEMORY),
            _decay(*decay, "four decades" if why.startswith("three") else "as AdamW's"),
        ),
        settings,
    )


def _with_betas(beta2: float) -> Callable[[Mapping[str, float]], Settings]:
    return lambda x: {"lr": x["lr"], "betas": [1 - x["1-beta1"], beta2], "weight_decay": x["weight_decay"]}


def _muon(x: Mapping[str, float]) -> Settings:
    decay, memory = x["weight_decay"], 1 - x["1-beta1"]
    adamw: Settings = {"adamw_lr": 0.015 * x["lr"], "adamw_weight_decay": decay}  # the defaults' ratio, 3e-4 to 0.02
    return {"lr": x["lr"], "momentum": memory, "weight_decay": decay, **adamw}


def _ivon(x: Mapping[str, float]) -> Settings:
    return {"lr": x["lr"], "beta1": 1 - x["1-beta1"], "weight_decay": x["weight_decay"]}


_PEERS = {
    "soap": _peer((1e-4, 0.1), (1e-4, 1.0), "three decades around 3e-3, the default", _with_betas(0.95)),
    "schedulefree-adamw": _peer((1e-4, 0.1), (1e-4, 1.0), "three decades around 2.5e-3, the default", _with_betas(0.999)),
    "ivon": _peer((1e-3, 1.0), (1e-6, 1e-2), "three decades that hold 0.1, the authors' value; decay as SGD's", _ivon),
    "adahessian": _peer((1e-3, 1.0), (1e-6, 1e-2), "three decades that hold 0.15, the authors' value", _with_betas(0.999)),
    "lion": _peer(
        (1e-5, 1e-2), (1e-3, 10.0), "three decades around 3e-4; a tenth of AdamW's, decay ten times", _with_betas(0.99)
    ),
    "muon": _peer((1e-3, 1.0), (1e-4, 1.0), "three decades around 0.02, the default", _muon),
    "lamb": _peer((1e-4, 0.1), (1e-4, 1.0), "three decades around 3e-3", _with_betas(0.999)),
    "adabelief": _peer((1e-4, 0.1), (1e-4, 1.0), "three decades around 3e-3, as Adam's", _with_betas(0.999)),
    "prodigy": _peer(
        (0.03, 30.0), (1e-4, 1.0), "three decades around 1, the default: a factor on its own step", _with_betas(0.999)
    ),
}
SPACES: dict[str, dict[str, Space]] = {
    "paper": {
        "sgd": _PAPER_SGD,
        "adam": _PAPER_ADAM,
        "adamw": _PAPER_ADAM,  # the paper's two tables are nearly the same
        "arturo": _PAPER_ARTURO,
        "arturo-paper": _PAPER_ARTURO,
    },
    "fair": {
        "sgd": Space(
            (
                Dimension("lr", 1e-3, 1.0, "three decades around 0.03; beyond 1 it diverges on most networks"),
                Dimension("1-momentum", 0.01, 0.5, _MEMORY),
                _decay(1e-6, 1e-2, "four decades up to where it keeps networks from fitting; 5e-4 is usual"),
            ),
            _sgd,
        ),
        "adam": Space(
            (
                Dimension("lr", 1e-4, 0.1, "three decades around 3e-3, which holds the usual 1e-3"),
                Dimension("1-beta1", 0.01, 0.5, _MEMORY),
                _decay(1e-6, 1e-2, "added to the gradient, as SGD's"),
            ),
            _adam,
        ),
        "adamw": _FAIR_ADAMW,
        "adamw-warmup": _FAIR_ADAMW,
        "adaarturo": _ADAARTURO,
        "adaarturo-diagonal": _ADAARTURO,
        "arturo": Space(
            (
                Dimension("lr", 0.05, 50.0, "the step factor: three decades around 1.6, which holds the default 1"),
                Dimension("drift", 1e-4, 0.25, "remembers sqrt(noise / drift) = 2 to 100 steps; the default 0.03 is 6"),
                _decay(1e-4, 1.0, "as AdamW's: times 1e-3 lr it is a share of the weight"),
            ),
            _arturo_fair,
        ),
        **_PEERS,
    },
}
SPACES["fair"]["arturo-default"] = SPACES["fair"]["arturo"]
for _name in ("soap", "schedulefree-adamw"):
    SPACES["fair"][f"{_name}-warmup"] = SPACES["fair"][_name]


def space(protocol: str, optimizer: str, ranges: Sequence[str] = ()) -> Space:
    """The space of an optimizer under a protocol, or what ``ranges`` say. None at all is an error that lists those with one."""
    _ = OPTIMIZERS[optimizer]  # a misspelt name raises
    if ranges:
        return parse_space(ranges)
    spaces = SPACES[protocol]
    if optimizer not in spaces:
        raise ConfigError(
            f"optimizer: {optimizer} has no search space under --protocol {protocol}; {', '.join(spaces)} have; "
            "give it one, e.g. --space lr=1e-4:1e-1:log"
        )
    return spaces[optimizer]


def parse_space(ranges: Sequence[str]) -> Space:
    """``name=low:high`` or ``name=low:high:log`` for each number to search, by the names of the optimizer's arguments.

    Example:
        >>> [(d.name, d.low, d.high, d.log) for d in parse_space(["lr=1e-4:1e-1:log", "weight_decay=0:0.1"]).dimensions]
        [('lr', 0.0001, 0.1, True), ('weight_decay', 0.0, 0.1, False)]
        >>> parse_space(["lr=0:1:log"])
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: space: the low end of lr must be above 0 for log, got 0
    """
    dimensions = [parse_range(text) for text in ranges]
    names = [dimension.name for dimension in dimensions]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(f"space: {name} is named twice")
    return Space(tuple(dimensions), dict)


def parse_range(text: str) -> Dimension:
    name, equals, rest = text.partition("=")
    ends = rest.split(":")
    scale = ends.pop() if len(ends) == 3 else "linear"
    try:
        low, high = map(float, ends)
    except ValueError:
        low = high = math.nan
    if not (equals and name.isidentifier() and scale in ("log", "linear") and math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"space: expected NAME=LOW:HIGH or NAME=LOW:HIGH:log, got {text!r}")
    if not low < high:
        raise ConfigError(f"space: the low end of {name} must be below the high end, got {low:g} and {high:g}")
    if scale == "log" and low <= 0:
        raise ConfigError(f"space: the low end of {name} must be above 0 for log, got {low:g}")
    return Dimension(name, low, high, "given", log=scale == "log")
