"""What each argument of :class:`arturo.Arturo` may be, and the published combination of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from arturo.surrogates import SURROGATES

DUALS = ("newton", "bisection")
INITS = ("consistent", "gradient")
COVARIANCES = ("kronecker", "diagonal")
GLOBAL = ("dual", "eta", "sample_gradients")  # one trust region, one multiplier: these cannot differ between groups
DEFAULT_CURVATURE = 0.1  # in units of the loss; initial_curvature=None takes the unit from the first gradients
SMALLEST_FLOOR = 1e-8  # of the curvature, where the prior does not keep the denominator positive

_AVERAGING = "the filter averages over some sqrt(noise / drift) steps: leave it out, or set drift"
FOREIGN = {  # arguments of other optimizers, and what to do instead
    "betas": _AVERAGING,
    "momentum": _AVERAGING,
    "nesterov": _AVERAGING,
    "dampening": _AVERAGING,
    "eps": "the trust region limits the step, so nothing needs to be kept from dividing by 0: leave it out",
    "amsgrad": "there is no second moment: leave it out",
    "decoupled_weight_decay": "weight_decay always is decoupled: leave it out",
}

PAPER: dict[str, Any] = {
    "dual": "bisection",
    "init": "gradient",
    "curvature_floor": None,
    "initial_curvature": 0.1,
    "initial_variance": 0.01,
    "initial_filter_variance": 5e-5,
}
"""The published behaviour: ``Arturo(params, **PAPER, kl_bound=..., ...)`` follows the authors' trajectory."""


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond the floats
        return False


def _positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _not_negative(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _or_none(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or rule(value)


def _pair_below_1(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(_not_negative(x) and x < 1 for x in value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kl_bound": (_or_none(_positive), "a finite number > 0, or None for one that scales with the number of weights"),
    "prior_weight": (_not_negative, "a finite number >= 0"),
    "prior_precision": (_not_negative, "a finite number >= 0"),
    "covariance_weight": (_positive, "a finite number > 0"),
    "noise": (_positive, "a finite number > 0"),
    "drift": (_not_negative, "a finite number >= 0"),
    "weight_decay": (_not_negative, "a finite number >= 0"),
    "initial_curvature": (_or_none(_not_negative), "a finite number >= 0, or None for one from the first gradients"),
    "initial_variance": (_or_none(_positive), "a finite number > 0, or None for the stationary one"),
    "initial_filter_variance": (_or_none(_positive), "a finite number > 0, or None for sqrt(drift * noise)"),
    "curvature_floor": (_or_none(_not_negative), "a finite number >= 0, or None for no guard (as published)"),
    "eta": (_or_none(_not_negative), "a finite number >= 0, or None to solve the dual"),
    "surrogate": (
        lambda value: (callable(value) and not isinstance(value, type)) or value in SURROGATES,
        f"one of {', '.join(map(repr, SURROGATES))}, or a function from a list of parameters to their Hessian diagonals",
    ),
    "averaging": (_or_none(_pair_below_1), "two numbers in [0, 1), or None for (0.9, 0.999)"),
    "dual": (lambda value: value in DUALS, f"one of {', '.join(map(repr, DUALS))}"),
    "init": (lambda value: value in INITS, f"one of {', '.join(map(repr, INITS))}"),
    "state_dtype": (
        lambda value: value is None or value is torch.bfloat16,
        "torch.bfloat16, or None for float32 or wider",
    ),
    "foreach": (_or_none(_boolean), "True, False or None"),
    "fused": (_or_none(_boolean), "True, False or None"),
    "capturable": (_boolean, "True or False"),
    "maximize": (_boolean, "True or False"),
    "sample_gradients": (
        lambda value: isinstance(value, int) and value >= 0,
        "True, False or an integer >= 0, the seed of the draws",
    ),
}


def check(group: Mapping[str, Any]) -> None:
    """Raise ValueError for the first hyperparameter of ``group`` that is out of its range, or a pair without meaning."""
    _check_lr(group["lr"])
    for name, (rule, allowed) in _RULES.items():
        if not rule(group[name]):
            raise ValueError(f"Invalid {name} value: {group[name]!r} (must be {allowed})")
    rho, prior = group["prior_weight"], group["prior_weight"] * group["prior_precision"]
    if group["initial_variance"] is None:
        if rho == 0:
            raise ValueError(
                f"Invalid prior_weight value: {rho!r} without an initial_variance: there is no stationary variance to "
                "start from (pass initial_variance, e.g. 0.01)"
            )
        if initial_curvature(group) + prior == 0:
            raise ValueError(
                f"Invalid initial_curvature value: {group['initial_curvature']!r} with prior_weight * prior_precision = 0 "
                "and no initial_variance: there is no stationary variance to start from (pass initial_variance, e.g. 0.01)"
            )
    if group["state_dtype"] is not None and group["surrogate"] != "kalman":
        raise ValueError(
            f"Invalid state_dtype value: {group['state_dtype']!r} with surrogate={group['surrogate']!r} (rounded state is made "
            "for the Kalman filter: use surrogate='kalman', or state_dtype=None)"
        )
    if group["foreach"] and group["fused"]:
        raise ValueError("Invalid foreach value: True together with fused=True (choose one)")


def agree(group: dict[str, Any], first: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ValueError where a group differs from the first in what is one for all; what it leaves out is the first's."""
    for name in GLOBAL:
        if group.setdefault(name, first[name]) != first[name]:
            raise ValueError(
                f"Invalid {name} value: {group[name]!r} in a parameter group (one trust region serves all groups, and the "
                f"first one set {name}={first[name]!r}; give it alike in all groups, or in the constructor)"
            )
    a_0 = group.get("initial_curvature", defaults["initial_curvature"])
    if (a_0 is None) != (first["initial_curvature"] is None):
        raise ValueError(
            f"Invalid initial_curvature value: {a_0!r} in a parameter group, {first['initial_curvature']!r} in the first (None "
            "takes the unit of the loss from the gradients, for all groups: give a number in all of them or in none)"
        )


def initial_curvature(group: Mapping[str, Any]) -> float:
    """a_0 in the units that state is in: those of the loss, or of :mod:`arturo.loss_scale` for ``initial_curvature=None``."""
    a_0 = group["initial_curvature"]
    return DEFAULT_CURVATURE if a_0 is None else float(a_0)


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Raise TypeError for arguments that are not Arturo's."""
    for name in options:
        advice = FOREIGN.get(name)
        raise TypeError(
            f"Arturo got an unexpected keyword argument {name!r}" if advice is None else f"Arturo has no {name}: {advice}"
        )


_ADAPTIVE_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "betas": (_pair_below_1, "two numbers in [0, 1)"),
    "eps": (_not_negative, "a finite number >= 0"),
    "weight_decay": (_not_negative, "a finite number >= 0"),
    "covariance": (lambda value: value in COVARIANCES, f"one of {', '.join(map(repr, COVARIANCES))}"),
    "block": (lambda value: _whole(value) and value > 1, "an integer > 1"),
    "refresh": (lambda value: _whole(value) and value > 0, "an integer > 0"),
    **{name: _RULES[name] for name in ("maximize", "foreach", "capturable", "fused")},
}


def check_adaptive(group: Mapping[str, Any]) -> None:
    """:func:`check` for :class:`arturo.AdaArturo`."""
    _check_lr(group["lr"])
    for name, (rule, allowed) in _ADAPTIVE_RULES.items():
        if not rule(group[name]):
            raise ValueError(f"Invalid {name} value: {group[name]!r} (must be {allowed})")
    if group["foreach"] and group["fused"]:
        raise ValueError("Invalid foreach value: True together with fused=True (choose one)")
    if group["capturable"] and group["covariance"] == "kronecker":
        raise ValueError(
            "Invalid capturable value: True with covariance='kronecker' (a captured graph cannot refresh a basis every so many "
            "steps; use covariance='diagonal')"
        )


def check_number(name: str, value: Any, meaning: str, zero: bool = False) -> None:
    """Raise ValueError unless ``value`` is a finite number > 0, or >= 0 where ``zero`` is allowed."""
    if not (_not_negative(value) if zero else _positive(value)):
        raise ValueError(f"Invalid {name} value: {value!r} (must be a finite number {'>=' if zero else '>'} 0: {meaning})")


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same with NumPy's and other numbers as floats: ``torch.load(weights_only=True)`` takes nothing else."""
    numbers = {
        name: float(value) if type(value) not in (bool, int, float) and isinstance(value, Real) else value
        for name, value in options.items()
    }
    for name in ("averaging", "betas"):
        pair: Any = numbers.get(name)
        if pair is not None and not (type(pair) is tuple and all(type(x) is float for x in pair)):
            numbers[name] = tuple(float(x) for x in pair)
    return numbers


def _check_lr(lr: Any) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if lr.device.type == "meta":
            return
        lr = lr.item()
    if not _not_negative(lr):
        raise ValueError(f"Invalid learning rate: {lr!r} (lr must be a finite number >= 0)")
