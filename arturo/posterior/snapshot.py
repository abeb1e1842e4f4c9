"""A posterior from an optimizer: which parameters are in it, what they are called, and where their curvature comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from arturo.hyperparameters import ARTURO
from arturo.loss_scale import in_loss_units
from arturo.posterior.curvature import Data, Loss, ggn_diagonal
from arturo.posterior.gaussian import Posterior, check, some, weight_of
from arturo.sharding import drop_gathered, is_sharded

Curvature = str | Mapping[str, Tensor] | Callable[[list[Tensor]], Sequence[Tensor]]
NAMES = ("ggn", "surrogate")
PRIOR_PRECISION = ARTURO.default["prior_precision"]  # where groups have none


def posterior_of(
    optimizer: Optimizer,
    *,
    ess: float,
    temperature: float,
    curvature: Curvature,
    prior_precision: float | None,
    model: nn.Module | None,
    data: Data | None,
    loss: Loss,
) -> Posterior:
    """What :meth:`arturo.Arturo.posterior` documents."""
    check(ess, temperature, prior_precision)
    if isinstance(curvature, str) and curvature not in NAMES:
        raise ValueError(f"Invalid curvature value: {curvature!r} (must be 'ggn', 'surrogate', a mapping or a function)")
    numbered = enumerate((p, group) for group in optimizer.param_groups for p in group["params"])
    taking_part = {i: (p, group) for i, (p, group) in numbered if optimizer.state.get(p, {}).get("step", 0) > 0}
    if not taking_part:
        raise RuntimeError("there is no posterior before the first step(): nothing was observed yet")
    names = _names(optimizer, taking_part, model)
    params = {names[i]: p for i, (p, _) in taking_part.items()}
    curvatures = _curvatures(optimizer, params, curvature, model, data, loss)
    weights = {}
    for i, (p, group) in taking_part.items():
        prior = group.get("prior_precision", PRIOR_PRECISION) if prior_precision is None else prior_precision
        weights[names[i]] = weight_of(names[i], p, optimizer.state[p], curvatures[names[i]], prior)
    return Posterior(weights, ess, temperature)


def _curvatures(
    optimizer: Optimizer,
    params: dict[str, Tensor],
    curvature: Curvature,
    model: nn.Module | None,
    data: Data | None,
    loss: Loss,
) -> Mapping[str, Tensor]:
    kept = all("a" in optimizer.state[p] for p in params.values())
    if isinstance(curvature, str) and curvature == "surrogate":
        if not kept:
            raise ValueError("Invalid curvature value: 'surrogate' (this optimizer keeps no curvature in its state; use 'ggn')")
        return {name: in_loss_units(optimizer.state[p]["a"], optimizer.state[p]) for name, p in params.items()}
    if isinstance(curvature, str):
        if model is None or data is None:
            lacking = " and ".join(name for name, value in (("model", model), ("data", data)) if value is None)
            other = "; curvature='surrogate' needs neither, but is much less reliable (docs/posterior.md)" if kept else ""
            raise TypeError(
                f"curvature='ggn' needs {lacking}: posterior(ess=len(dataset), model=model, data=loader), where data is (x, y) "
                f"or gives batches{other}"
            )
        if any(is_sharded(p) for p in params.values()):
            raise ValueError(
                "Invalid curvature value: 'ggn' for sharded parameters (DTensor): pass what arturo.ggn_diagonal gives for an "
                f"unsharded copy of the model{', or ' + repr('surrogate') if kept else ''}"
            )
        return ggn_diagonal(model, data, loss, parameters=params.values())
    if isinstance(curvature, Mapping):
        for name in params:
            if name not in curvature:
                raise KeyError(f"curvature: nothing for {name!r}; it has {some(curvature)} (pass the model for names)")
        return curvature
    values = list(curvature(list(params.values())))
    if len(values) != len(params):
        raise ValueError(f"curvature gave {len(values)} tensors for {len(params)} parameters")
    return dict(zip(params, values, strict=True))


def _names(optimizer: Optimizer, taking_part: dict[int, tuple[Tensor, Any]], model: nn.Module | None) -> dict[int, str]:
    """The model's names, else those the optimizer was given (``named_parameters()``), else numbers."""
    if model is not None:
        drop_gathered(p for p, _ in taking_part.values())
        by_id = {id(p): name for name, p in model.named_parameters()}
        for i, (p, _) in taking_part.items():
            if id(p) not in by_id:
                raise ValueError(
                    f"parameter {i} of the optimizer, shape {tuple(p.shape)}, is not one of the model's: is this the model it "
                    "trains?"
                )
        return {i: by_id[id(p)] for i, (p, _) in taking_part.items()}
    named = [name for g in optimizer.param_groups for name in g.get("param_names", [None] * len(g["params"]))]
    return {i: named[i] or str(i) for i in taking_part}
