"""Where a diagonal of the Hessian comes from: what BackPACK left at the parameters, Hutchinson's estimate, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.core import rounding
from arturo.surrogates import FUNCTION
from arturo.surrogates.hutchinson import estimated_diagonal, hessian_product, signs

Diagonal = Callable[[list[Tensor]], Iterable[Tensor]]
ATTRIBUTES = {"hessian": ("diag_h", "DiagHessian"), "ggn": ("diag_ggn_exact", "DiagGGNExact")}  # BackPACK's names
WITH_DIAGONAL = (*ATTRIBUTES, "hutchinson", FUNCTION)


def gather(
    groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Any], functions: Mapping[int, Diagonal], sharded: bool
) -> dict[Tensor, Tensor]:
    """The diagonals that this step observes, by parameter: of each one with a gradient, in a group that asks for one.

    Args:
        groups: the optimizer's.
        state: the optimizer's; every parameter with a gradient has some.
        functions: those passed as surrogate, by the group's index.
        sharded: whether there are DTensors.
    """
    numbered = enumerate(p for group in groups for p in group["params"])
    number = {p: i for i, p in numbered if p.grad is not None}
    asking = [(i, group) for i, group in enumerate(groups) if group["surrogate"] in WITH_DIAGONAL and not _still(group)]
    members = {i: [p for p in group["params"] if p.grad is not None] for i, group in asking}
    asking = [(i, group) for i, group in asking if members[i]]
    if not asking:
        return {}
    name = asking[0][1]["surrogate"]
    if torch.compiler.is_compiling():
        raise RuntimeError(
            f"surrogate={name!r} cannot be compiled: its diagonal comes from outside the step. "
            "Call optimizer.step() outside torch.compile, or use surrogate='kalman' or 'adam'"
        )
    if sharded:
        raise RuntimeError(
            f"surrogate={name!r} does not support sharded parameters (DTensor): no diagonal is "
            "known for a shard alone. Use surrogate='kalman' or 'adam'"
        )
    diagonals: dict[Tensor, Tensor] = {}
    estimated: list[Tensor] = []
    for i, group in asking:
        name, params = group["surrogate"], members[i]
        if name in ATTRIBUTES:
            diagonals.update(_matched(params, left_by_backpack(params, name), f"p.{ATTRIBUTES[name][0]}"))
        elif name == FUNCTION:
            with torch.enable_grad():
                diagonals.update(_matched(params, _listed(functions[i](list(params))), "the function passed as surrogate"))
        else:
            estimated += params
    if estimated:  # one product for all groups: splitting parameters into groups changes nothing
        z = [signs(p.detach(), rounding.seed(state[p]["step"].to(torch.int64), number[p])) for p in estimated]
        products = hessian_product(estimated, [p.grad for p in estimated], z)  # type: ignore[misc]
        diagonals.update(_matched(estimated, list(map(estimated_diagonal, z, products)), "Hutchinson's estimate"))
    return diagonals


def left_by_backpack(params: Sequence[Any], name: str) -> list[Tensor]:
    """The diagonals that BackPACK wrote during the last backward pass under it: one without it leaves them as they were."""
    attribute, extension = ATTRIBUTES[name]
    lacking = sum(not isinstance(getattr(p, attribute, None), Tensor) for p in params)
    if lacking:
        raise RuntimeError(
            f"surrogate={name!r} reads p.{attribute}, which BackPACK sets in a backward pass under "
            f"`with backpack({extension}()):` on a network and a loss that went through `extend`; {lacking} of {len(params)} "
            "parameters lack it. BackPACK has no rule for BatchNorm, residual sums and other layers that are not plain modules "
            "in sequence: there use surrogate='hutchinson', or pass a function that gives the diagonal"
        )
    return [getattr(p, attribute) for p in params]


def _listed(returned: Any) -> list[Tensor]:
    several = isinstance(returned, Iterable) and not isinstance(returned, (Tensor, Mapping))
    diagonals = list(returned) if several else []
    wrong = [type(h).__name__ for h in diagonals if not isinstance(h, Tensor)]
    if wrong or not several:
        got = f"{type(returned).__name__} with a {wrong[0]} in it" if wrong else type(returned).__name__
        raise TypeError(f"the function passed as surrogate must return a list of tensors, one for each parameter, got {got}")
    return diagonals


def _matched(params: Sequence[Tensor], diagonals: Sequence[Tensor], source: str) -> dict[Tensor, Tensor]:
    """By parameter; each must fit its own."""
    if len(diagonals) != len(params):
        raise ValueError(f"{source} gave {len(diagonals)} diagonals for {len(params)} parameters")
    for p, h in zip(params, diagonals, strict=True):
        if h.shape != p.shape:
            raise ValueError(f"{source} gave a diagonal of shape {tuple(h.shape)} for a parameter of shape {tuple(p.shape)}")
    return {p: h.detach() for p, h in zip(params, diagonals, strict=True)}


def _still(group: Mapping[str, Any]) -> bool:
    """lr = 0: nothing happens, and no diagonal is asked for. (An accelerator's lr is not read.)"""
    lr = group["lr"]
    return not (isinstance(lr, Tensor) and lr.device.type != "cpu") and not float(lr) > 0
