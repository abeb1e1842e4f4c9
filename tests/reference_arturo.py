"""The oracle of :class:`arturo.Arturo`: the paper's formulas (`arturo.reference`) with groups, lr, weight decay and missing
gradients, in slow float64 NumPy."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from arturo.reference import (
    LARGEST_GRADIENT,
    Array,
    Quadratic,
    _inverse,
    bisection,
    dual_derivative,
    kalman_update,
    kl_taken,
    moment_update,
    primal_covariance,
    solve_dual,
)

REQUIRED = ("kl_bound", "prior_weight", "noise", "drift")
DEFAULTS: dict[str, Any] = {
    "lr": 1.0, "prior_precision": 0.0015, "covariance_weight": 1.3, "weight_decay": 0.0, "initial_curvature": None,
    "initial_variance": None, "initial_filter_variance": None, "curvature_floor": 0.0, "init": "consistent",
    "maximize": False, "surrogate": "kalman", "averaging": (0.9, 0.999),
}  # fmt: skip


class ReferenceStep(NamedTuple):
    """What a step did. A step in which nothing moves reports the kept eta, kl = 0, evaluations = 0, active = False."""

    eta: float  # the multiplier used
    kl: float  # of the step taken, in nats
    bound: float  # B, in nats
    evaluations: int  # how often C was evaluated, the one for `kl` included
    active: bool  # eta > 0: the trust region cut the step short
    skipped: int  # missing gradient entries


def _nested(values: Sequence[Any]) -> Sequence[Any]:
    """By groups; a flat list is that of the only one."""
    return values if values and isinstance(values[0], (list, tuple)) else [values]


def _bound(group: Mapping[str, Any], weights: int) -> float:
    """e_g = epsilon lr^2: step length is proportional to lr. epsilon = None is 1e-7 nats for each weight that takes part."""
    return float((1e-7 * weights if group["kl_bound"] is None else group["kl_bound"]) * group["lr"] ** 2)


def _decayed(group: Mapping[str, Any], mean: Array) -> Array:
    """The mean from which everything in a step is measured: weight decay comes first, theta - epsilon lr^2 wd theta.

    Without an epsilon it is theta - 1e-3 lr wd theta, whatever the number of weights.
    """
    lr, epsilon = group["lr"], group["kl_bound"]
    rate = float(1e-3 * lr if epsilon is None else epsilon * lr**2)
    return mean.ravel() * (1.0 - rate * float(group["weight_decay"]))


def loss_unit(grads: Sequence[Array], step: float) -> float | None:
    """kappa, by which gradients are divided where `initial_curvature` is None: a run then does not depend on the loss's scale.

        a_0 = 0.1 kappa = 0.03 (root mean square of the first gradients, entries that are 0 or missing left out) / step

    with the step per weight that the bound allows at lr = 1 (`typical_step`), rounded to float32. None where no entry is left:
    the unit stays open, and what is 0 is 0 in any unit.

    >>> loss_unit([np.array([4.0, 0.0]), np.array([-4.0, np.nan])], 0.3), loss_unit([np.zeros(2)], 0.3)
    (4.0, None)
    """
    entries = np.concatenate([g.ravel() for g in grads])
    entries = entries[(np.abs(entries) <= LARGEST_GRADIENT) & (entries != 0)]
    return float(np.float32(np.sqrt(np.mean(entries**2)) * 0.3 / step)) if entries.size else None


def typical_step(groups: Sequence[Mapping[str, Any]], weights: int) -> float:
    """sqrt(2 epsilon Sigma_0 / n), the root mean square per weight of a step of KL epsilon; the largest over the groups."""
    variances = [1.0 / _initial_state(group, ())["prec"] for group in groups]
    bounds = [_bound({**group, "lr": 1.0}, weights) for group in groups]
    return float(np.sqrt(max(2 * e * v / weights for e, v in zip(bounds, variances, strict=True))))


def _initial_state(group: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """a_0, P_0 and Sigma_0. b = 0 is a placeholder until the first gradient."""
    a = 0.1 if group["initial_curvature"] is None else group["initial_curvature"]
    rho, q, r = group["prior_weight"], group["drift"], group["noise"]
    P, variance = group["initial_filter_variance"], group["initial_variance"]
    if P is None:
        P = np.sqrt(q * r) if q > 0 else r  # the steady state of b
    if variance is None:
        variance = rho / (a + rho * group["prior_precision"])  # the fixed point of primal_covariance
    values = {"prec": 1.0 / variance, "a": a, "b": 0.0}
    if group["surrogate"] == "kalman":
        values |= {"P_aa": P, "P_ab": 0.0, "P_bb": P}
    else:
        values |= {"grad_avg": 0.0}
    return {**{name: np.full(shape, value, dtype=np.float64) for name, value in values.items()}, "step": 0, "eta": 0.0}


def _observe(group: Mapping[str, Any], state: dict[str, Any], mean: Array, g: Array) -> npt.NDArray[np.bool_]:
    """Fit the model to one gradient; on a parameter's first step set b_0 before. Returns which entries were seen."""
    mu, g = _decayed(group, mean), -g.ravel() if group["maximize"] else g.ravel()
    a, b, P_aa, P_ab, P_bb = (state[name].ravel() for name in ("a", "b", "P_aa", "P_ab", "P_bb"))
    seen = np.abs(g) <= LARGEST_GRADIENT
    if state["step"] == 0:  # "consistent": the model's first gradient is g. "gradient", as published: a_0 mu + g
        b = np.where(seen, g - a * mu if group["init"] == "consistent" else g, -a * mu)
    w, P = np.stack([a, b], axis=-1), np.stack([P_aa, P_ab, P_ab, P_bb], axis=-1).reshape(-1, 2, 2)
    w, P = kalman_update(w, P, mu, g, group["drift"], group["noise"])
    new = {"a": w[:, 0], "b": w[:, 1], "P_aa": P[:, 0, 0], "P_ab": P[:, 0, 1], "P_bb": P[:, 1, 1]}
    state.update({name: value.reshape(mean.shape) for name, value in new.items()})
    return seen


def _average(group: Mapping[str, Any], state: dict[str, Any], mean: Array, g: Array, h: Array | None) -> npt.NDArray[np.bool_]:
    """The model from running averages: of the gradient, and of its square (no `h`) or of a Hessian diagonal `h`.

    a = sqrt(average of g^2) or the average of h; b = (average of g) - a mu, so that the model's gradient at mu is the average.
    """
    mu, sign, t = _decayed(group, mean), -1.0 if group["maximize"] else 1.0, state["step"] + 1
    beta_g, beta_h = group["averaging"]
    g = sign * g.ravel()
    seen = np.abs(g) <= LARGEST_GRADIENT
    a, grad_avg = state["a"].ravel(), state["grad_avg"].ravel()
    if h is None:
        a = np.sqrt(moment_update(a**2, np.where(seen, g, np.nan) ** 2, beta_h, t))
    else:
        seen &= np.abs(h.ravel()) <= LARGEST_GRADIENT
        a = moment_update(a, np.where(seen, sign * h.ravel(), np.nan), beta_h, t)
    grad_avg = moment_update(grad_avg, np.where(seen, g, np.nan), beta_g, t)
    new = {"a": a, "b": grad_avg - a * mu, "grad_avg": grad_avg}
    state.update({name: value.reshape(mean.shape) for name, value in new.items()})
    return seen


def _quadratic(group: Mapping[str, Any], state: Mapping[str, Any], mean: Array, factor: float) -> Quadratic:
    """The fitted model as 1x1 blocks. A curvature below the floor is raised, b turned to keep the gradient at mu."""
    mu, a, b = _decayed(group, mean), state["a"].ravel(), state["b"].ravel()
    rho, lam = float(group["prior_weight"]), float(group["prior_precision"])
    floor = group["curvature_floor"]
    if floor == 0 and rho * lam == 0:
        floor = 1e-8  # else the model has no minimum where a <= 0
    raised = a if floor is None else np.maximum(a, floor)
    b = b + (a - raised) * mu
    prec, A = state["prec"].reshape(-1, 1, 1), raised.reshape(-1, 1, 1)
    return Quadratic(mu[:, None], prec, A, b[:, None], rho, lam, factor)


class ReferenceArturo:
    """The optimizer over NumPy arrays: `step(grads)` moves the means in `groups[i]["params"][j]`.

    With `initial_curvature=None` gradients are divided by `unit` (`loss_unit`), found on the first step, before all else.
    The filter state stands in `state[i][j]`: prec, a, b, P_aa, P_ab, P_bb (arrays like the parameter), step, eta. Other
    surrogates have grad_avg in place of P: "adam", and any other name for running averages of diagonals given to `step`.

    Args:
        groups: mappings {"params": [arrays], **overrides}, or a plain list of arrays. Arrays are copied to float64.
        dual: "newton", here the exact solution (`solve_dual`), or "bisection", the published rule.
        eta: fixes the multiplier; `step(..., eta=...)` does so for one step.
        defaults: hyperparameters of every group, kl_bound, prior_weight, noise and drift among them.

    >>> opt = ReferenceArturo([np.array([1.0, -2.0])], kl_bound=0.01, prior_weight=0.3, noise=1.0, drift=0.01)
    >>> for _ in range(60):  # the loss is 1/2 |theta|^2, so that the gradient is theta
    ...     info = opt.step([opt.groups[0]["params"][0]])
    >>> bool(np.abs(opt.groups[0]["params"][0]).max() < 0.01), info.active
    (True, False)
    """

    def __init__(
        self, groups: Sequence[Mapping[str, Any]] | Sequence[npt.ArrayLike], *, dual: str = "newton",
        eta: float | None = None, **defaults: Any,
    ) -> None:  # fmt: skip
        if dual not in ("newton", "bisection"):
            raise ValueError(f"dual must be 'newton' or 'bisection', got {dual!r}")
        self.dual, self.eta = dual, eta
        self.unit: float | None = None
        mappings = [g for g in groups if isinstance(g, Mapping)] or [{"params": groups}]
        self.groups: list[dict[str, Any]] = [{**DEFAULTS, **defaults, **g} for g in mappings]
        self.state: list[list[dict[str, Any]]] = []
        for group in self.groups:
            missing, unknown = set(REQUIRED) - set(group), set(group) - {*REQUIRED, *DEFAULTS, "params"}
            if missing or unknown:
                raise TypeError(f"hyperparameters missing: {sorted(missing)}, unknown: {sorted(unknown)}")
            if group["init"] not in ("consistent", "gradient"):
                raise ValueError(f"init must be 'consistent' or 'gradient', got {group['init']!r}")
            if group["prior_weight"] == 0 and group["initial_variance"] is None:
                raise ValueError("prior_weight = 0 has no stationary variance: give an initial_variance")
            if group["initial_curvature"] is None and group["surrogate"] != "kalman":
                group["initial_curvature"] = 0.1  # a true curvature is in units of the loss
            group["params"] = [np.array(p, dtype=np.float64) for p in group["params"]]
            self.state.append([{} for _ in group["params"]])

    def step(self, grads: Sequence[Any], *, eta: float | None = None, diagonals: Sequence[Any] | None = None) -> ReferenceStep:
        """Take one step. `grads` is nested like the groups (flat for a flat list); None leaves a parameter out.

        `diagonals`, nested alike, are of the Hessian, for surrogates that want one.
        """
        nested = _nested(grads)
        curved = [[None] * len(gs) for gs in nested] if diagonals is None else _nested(diagonals)
        taking: list[tuple[dict[str, Any], dict[str, Any], Array, Array, Any]] = []  # group, state, mean, gradient, diagonal
        for group, states, gs, hs in zip(self.groups, self.state, nested, curved, strict=True):
            for state, mean, g, h in zip(states, group["params"], gs, hs, strict=True):
                if g is None:
                    continue
                if np.shape(g) != mean.shape:
                    raise ValueError(f"gradient of shape {np.shape(g)} for a parameter of shape {mean.shape}")
                if not state:
                    state.update(_initial_state(group, mean.shape))
                if group["lr"] > 0:
                    taking.append((group, state, mean, np.asarray(g, dtype=np.float64), h))
        weights = sum(mean.size for _, _, mean, *_ in taking)
        bounds = [_bound(group, weights) for group, *_ in taking]
        bound = max(bounds, default=0.0)
        known = [state for _, state, *_ in taking] or [state for states in self.state for state in states if state]
        previous: float | None = next((state["eta"] for state in known if state["step"] > 0), None)
        nothing = ReferenceStep(previous or 0.0, 0.0, bound, 0, False, 0)
        if bound == 0:
            return nothing

        if self.unit is None and self.groups[0]["initial_curvature"] is None:
            self.unit = loss_unit([g for *_, g, _ in taking], typical_step(self.groups, weights))
        unit = self.unit or 1.0
        taking = [
            (group, state, mean, g / unit, None if h is None else np.asarray(h, np.float64) / unit)
            for group, state, mean, g, h in taking
        ]

        # Fit the model.
        skipped = 0
        for group, state, mean, g, h in taking:
            if group["surrogate"] == "kalman":
                seen = _observe(group, state, mean, g)
            else:
                seen = _average(group, state, mean, g, None if group["surrogate"] == "adam" else np.asarray(h, np.float64))
            skipped += int(np.sum(~seen))
        if skipped == weights:
            return nothing._replace(skipped=skipped)

        # Find the multiplier.
        problem = [
            _quadratic(group, state, mean, float(np.sqrt(e / bound)))
            for (group, state, mean, *_), e in zip(taking, bounds, strict=True)
        ]
        evaluations = 0

        def derivative(x: float) -> float:
            nonlocal evaluations
            evaluations += 1
            return dual_derivative(x, problem, bound)

        eta = self.eta if eta is None else eta
        if eta is None and self.dual == "newton":
            poles = [-(p.A + p.rho * p.lam) / p.prec for p in problem if p.mu.size]
            eta = solve_dual(derivative, pole=max(float(x.max()) for x in poles))
        elif eta is None:
            eta = bisection(derivative, bound, previous)
        kl = kl_taken(eta, problem)

        # Move.
        for (group, state, mean, *_), p in zip(taking, problem, strict=True):
            mean[...] = (p.mu - p.factor * p.step(eta)).reshape(mean.shape)
            Sigma = primal_covariance(p.prec, p.A, p.rho, p.lam, group["covariance_weight"])
            state.update(prec=_inverse(Sigma).reshape(mean.shape), eta=eta, step=state["step"] + 1)
        return ReferenceStep(eta, kl, bound, evaluations + 1, eta > 0, skipped)
