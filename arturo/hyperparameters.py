"""The hyperparameters of both optimizers, each declared once (:mod:`arturo.declaration`), and the published combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from arturo.declaration import (
    BOOLEAN,
    NOT_NEGATIVE,
    PAIR_BELOW_1,
    POSITIVE,
    SWITCH,
    Hyperparameter,
    Hyperparameters,
    Rule,
    more_than,
    one_of,
)
from arturo.surrogates import SURROGATES, averages

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


def initial_curvature(group: Mapping[str, Any]) -> float:
    """a_0 in the units that state is in: those of the loss, or of :mod:`arturo.loss_scale` for ``initial_curvature=None``."""
    a_0 = group["initial_curvature"]
    return DEFAULT_CURVATURE if a_0 is None else float(a_0)


def _rho_lam(group: Mapping[str, Any]) -> Any:
    return group["prior_weight"] * group["prior_precision"]


def _floor(group: Mapping[str, Any]) -> Any:
    floor = group["curvature_floor"]
    return SMALLEST_FLOOR if floor == 0 and _rho_lam(group) == 0 else floor


def _has_a_start(group: Mapping[str, Any]) -> None:
    if group["initial_variance"] is not None:
        return
    if group["prior_weight"] == 0:
        raise ValueError(
            f"Invalid prior_weight value: {group['prior_weight']!r} without an initial_variance: there is no stationary "
            "variance to start from (pass initial_variance, e.g. 0.01)"
        )
    if initial_curvature(group) + _rho_lam(group) == 0:
        raise ValueError(
            f"Invalid initial_curvature value: {group['initial_curvature']!r} with prior_weight * prior_precision = 0 "
            "and no initial_variance: there is no stationary variance to start from (pass initial_variance, e.g. 0.01)"
        )


def _rounded_state_is_for_the_filter(group: Mapping[str, Any]) -> None:
    if group["state_dtype"] is not None and group["surrogate"] != "kalman":
        raise ValueError(
            f"Invalid state_dtype value: {group['state_dtype']!r} with surrogate={group['surrogate']!r} (rounded state is made "
            "for the Kalman filter: use surrogate='kalman', or state_dtype=None)"
        )


def _foreach_or_fused(group: Mapping[str, Any]) -> None:
    if group["foreach"] and group["fused"]:
        raise ValueError("Invalid foreach value: True together with fused=True (choose one)")


def _no_refresh_in_a_graph(group: Mapping[str, Any]) -> None:
    if group["capturable"] and group["covariance"] == "kronecker":
        raise ValueError(
            "Invalid capturable value: True with covariance='kronecker' (a captured graph cannot refresh a basis every so many "
            "steps; use covariance='diagonal')"
        )


_IMPLEMENTATION = (
    Hyperparameter("foreach", None, SWITCH, "which implementation runs, see [design.md](design.md)", "`kernels`"),
    Hyperparameter("fused", None, SWITCH, "which implementation runs, see [design.md](design.md)", "`kernels`"),
    Hyperparameter("capturable", False, BOOLEAN, "no host read in the step", "`step`"),
)

_STATE_DTYPE = Rule(lambda value: value is None or value is torch.bfloat16, "torch.bfloat16, or None for float32 or wider")
ARTURO = Hyperparameters(
    (
        Hyperparameter(
            "lr", 1.0, NOT_NEGATIVE, r"–; the bound is $\varepsilon \cdot \mathrm{lr}^2$, step length is proportional to lr",
            "`bounds`", r"schedule of $\varepsilon$", code="`bound`",
        ),
        Hyperparameter(
            "kl_bound", None, POSITIVE.or_none("for one that scales with the number of weights"),
            "nats per step, for the whole network", "`bounds`", r"$\varepsilon$", code="`bound` (with `lr`)",
            note="`KL_PER_WEIGHT` times the number of weights that take part",
        ),
        Hyperparameter(
            "prior_weight", 0.1, NOT_NEGATIVE, "$L$ per nat; weight of the KL to the prior", "`trust_region.primal_precision`",
            r"$\rho$", "rho",
        ),
        Hyperparameter(
            "prior_precision", 0.0015, NOT_NEGATIVE, r"$\theta^{-2}$; precision of the prior $N(0, 1/\lambda)$",
            "`model_gradient`, `curvature`", r"$\lambda$", "rho_lam", _rho_lam, r"in `rho_lam` $= \rho\lambda$",
        ),
        Hyperparameter(
            "covariance_weight", 1.3, POSITIVE, "$L$ per nat; inertia of the covariance", "`primal_precision`", r"$\nu$", "nu",
        ),
        Hyperparameter(
            "noise", 1.0, POSITIVE, r"$(L/\theta)^2$; variance of a gradient entry around the model", "`kalman.filter_update`",
            "$r$", "r",
        ),
        Hyperparameter(
            "drift", 0.03, NOT_NEGATIVE,
            r"variance per step by which $a$ (in $L/\theta^2$) and $b$ (in $L/\theta$) may drift", "`kalman.filter_update`",
            "$q$", "q",
        ),
        Hyperparameter(
            "weight_decay", 0.0, NOT_NEGATIVE, "per nat, or –; shrinks the mean before the step", "all three passes",
            "weight decay",
            code=r"`decay` $= 1 - e_g \cdot \mathrm{wd}$, or $1 - 10^{-3} \mathrm{lr} \cdot \mathrm{wd}$ for `kl_bound=None`",
        ),
        Hyperparameter(
            "initial_curvature", None, NOT_NEGATIVE.or_none("for one from the first gradients"), r"$L/\theta^2$",
            "`state.initial_state`, `first_intercept`", "$a_0$ (not printed)", "a_0", initial_curvature, note=r"$0.1\kappa$",
        ),
        Hyperparameter(
            "initial_variance", None, POSITIVE.or_none("for the stationary one"), r"$\theta^2$", "`state.initial_state`",
            r"$\Sigma_0$", note=r"$\rho/(a_0 + \rho\lambda)$",
        ),
        Hyperparameter(
            "initial_filter_variance", None, POSITIVE.or_none("for sqrt(drift * noise)"), "as $q$; times the unit matrix",
            "`kalman`", "$P_0$", note=r"$\sqrt{qr}$, or $r$ if $q = 0$",
        ),
        Hyperparameter(
            "curvature_floor", 0.0, NOT_NEGATIVE.or_none("for no guard (as published)"),
            r"$L/\theta^2$; least curvature in denominators. `None`: no guard. If $\rho\lambda = 0$, a floor of 0 becomes 1e-8",
            "`trust_region.curvature`", letter="floor", constant=_floor,
        ),
        Hyperparameter(
            "eta", None, NOT_NEGATIVE.or_none("to solve the dual"), "$L$ per nat; a fixed multiplier instead of a trust region",
            "`dual`", r"fixed $\eta$ (ablation)",
        ),
        Hyperparameter(
            "surrogate", "kalman",
            Rule(
                lambda value: (callable(value) and not isinstance(value, type)) or value in SURROGATES,
                f"{one_of(*SURROGATES).words}, or a function from a list of parameters to their Hessian diagonals",
            ),
            'where $(a, b)$ come from: `"kalman"`, `"adam"`, `"hessian"`, `"ggn"`, `"hutchinson"`, or a function that gives '
            "the diagonal", "`surrogates/`",
        ),
        Hyperparameter(
            "averaging", None, PAIR_BELOW_1.or_none("for (0.9, 0.999)"),
            "–; averaging constants of gradient and curvature, for the surrogates other than the filter",
            "`averages.average_weight`", r"Adam's $\beta_1, \beta_2$", "averaging",
            lambda group: group["averaging"] or averages.DEFAULT, r"`w_g`, `w_h` $= (1-\beta)/(1-\beta^t)$",
            "(0.9, 0.999)",
        ),
        Hyperparameter(
            "dual", "newton", one_of("newton", "bisection"), r'how $\eta$ is found; `"bisection"`: the published rule',
            "`dual`", "bisection",
        ),
        Hyperparameter(
            "init", "consistent", one_of("consistent", "gradient"),
            r'$b_0 = g - a_0\mu$; `"gradient"`: the published $b_0 = g$', "`kalman.first_intercept`", letter="consistent",
            constant=lambda group: group["init"] == "consistent",
        ),
        Hyperparameter(
            "state_dtype", None, _STATE_DTYPE, "`torch.bfloat16` halves the state", "`state.initial_state`, `rounding`",
            note="float32 or wider",
        ),
        *_IMPLEMENTATION,
        Hyperparameter(
            "maximize", False, BOOLEAN, "the gradient changes sign", "`observe`", code="in `factor`",
        ),
        Hyperparameter(
            "sample_gradients", False,
            Rule(
                lambda value: isinstance(value, int) and value >= 0,
                "True, False or an integer >= 0, the seed of the draws",
            ),
            r"gradients at draws from $N(\mu, \Sigma)$, through a closure; one setting for all groups", "`sampling.draw`",
        ),
    ),
    _has_a_start, _rounded_state_is_for_the_filter, _foreach_or_fused,
)  # fmt: skip

ADAPTIVE = Hyperparameters(
    (
        Hyperparameter(
            "lr", 1e-3, NOT_NEGATIVE,
            r"$\theta$ per step for a tensor of size $1/\chi$; others in proportion to their size", "`adaptive_step.take_step`",
            r"$\tau / \chi$", code="`lr`",
        ),
        Hyperparameter(
            "betas", (0.9, 0.995), PAIR_BELOW_1,
            "–; the filter's gain settles at $1 - b_1$, $b_2$ is the averaging constant of the noise",
            "`learned.filter_gain`, `noise_weight`", "$b_1$, $b_2$", code="`b1`, `b2`",
        ),
        Hyperparameter(
            "eps", 1e-30, NOT_NEGATIVE, r"$L/\theta$; added to $s$", "`learned.noise_scale`", r"$\epsilon$", code="`eps`",
        ),
        Hyperparameter(
            "weight_decay", 0.0, NOT_NEGATIVE,
            r"–; weights are multiplied by $1 - \mathrm{lr} \cdot \mathrm{wd}$ before a step", "`adaptive_step.take_step`",
            "weight decay", code="`keep`",
        ),
        Hyperparameter(
            "covariance", "kronecker", one_of("kronecker", "diagonal"), '`"diagonal"`: $Q = I$', "`adaptive_state.grid_of`",
            code="`grid`",
        ),
        Hyperparameter(
            "block", 128, more_than(1), "entries; longest side of a tile that turns", "`kronecker.tiling`", code="`block`",
        ),
        Hyperparameter(
            "refresh", 10, more_than(0), "steps between two refreshes of a basis", "`kronecker.due`", code="`every`",
        ),
        Hyperparameter(
            "maximize", False, BOOLEAN, "the gradient changes sign", "`eager.observe`", code="`maximize`",
        ),
        Hyperparameter(
            "state_dtype", None, _STATE_DTYPE, "`torch.bfloat16` halves the state",
            "`adaptive_state.initial_state`, `rounding`", note="float32 or wider",
        ),
        *_IMPLEMENTATION,
    ),
    _foreach_or_fused, _no_refresh_in_a_graph,
)  # fmt: skip


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


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Raise TypeError for arguments that are not Arturo's."""
    for name in options:
        advice = FOREIGN.get(name)
        raise TypeError(
            f"Arturo got an unexpected keyword argument {name!r}" if advice is None else f"Arturo has no {name}: {advice}"
        )
