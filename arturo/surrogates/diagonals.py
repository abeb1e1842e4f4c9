"""Where a diagonal of the Hessian comes from: what BackPACK left at the parameters, Hutchinson's estimate, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.kernels import rounding
from arturo.state import buffer_dtype
from arturo.step import Slot
from arturo.surrogates import FUNCTION
from arturo.surrogates.hutchinson import estimated_diagonal, hessian_product, signs

Diagonal = Callable[[list[Tensor]], Iterable[Tensor]]
ATTRIBUTES = {"hessian": ("diag_h", "DiagHessian"), "ggn": ("diag_ggn_exact", "DiagGGNExact")}  # BackPACK's names
WITH_DIAGONAL = (*ATTRIBUTES, "hutchinson", FUNCTION)


def attach(slots: list[Slot], functions: Mapping[int, Diagonal]) -> None:
    """Put the diagonal in its place in every slot that wants one: that of ``P_ab``, see :class:`arturo.kernels.batch.Batch`.

    Args:
        slots: one for each parameter group, before their tensors are made vectors.
        functions: by the group's index.
    """
    wanting = [(i, s) for i, s in enumerate(slots) if s.group["surrogate"] in WITH_DIAGONAL and s.param and not _still(s.group)]
    if not wanting:
        return
    if torch.compiler.is_compiling():
        raise RuntimeError(
            f"surrogate={wanting[0][1].group['surrogate']!r} cannot be compiled: its diagonal comes from outside the step. "
            "Call optimizer.step() outside torch.compile, or use surrogate='kalman' or 'adam'"
        )
    if any(slot.piece for _, slot in wanting):
        raise RuntimeError(
            f"surrogate={wanting[0][1].group['surrogate']!r} does not support sharded parameters (DTensor): no diagonal is "
            "known for a shard alone. Use surrogate='kalman' or 'adam'"
        )
    for i, slot in wanting:
        name = slot.group["surrogate"]
        if name in ATTRIBUTES:
            _set(slot, left_by_backpack(slot.param, name), f"p.{ATTRIBUTES[name][0]}")
        elif name == FUNCTION:
            with torch.enable_grad():
                _set(slot, _listed(functions[i](list(slot.param))), "the function passed as surrogate")
    estimated = [slot for _, slot in wanting if slot.group["surrogate"] == "hutchinson"]
    if estimated:  # one product for all groups: splitting parameters into groups changes nothing
        z = [
            signs(p.detach(), rounding.seed(step.to(torch.int64), number))
            for slot in estimated
            for p, step, number in zip(slot.param, slot.step, slot.number, strict=True)
        ]
        params, grads = [p for slot in estimated for p in slot.param], [g for slot in estimated for g in slot.grad]
        found = map(estimated_diagonal, z, hessian_product(params, grads, z))
        for slot in estimated:
            _set(slot, [next(found) for _ in slot.param], "Hutchinson's estimate")


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


def _listed(given: Any) -> list[Tensor]:
    several = isinstance(given, Iterable) and not isinstance(given, (Tensor, Mapping))
    found = list(given) if several else []
    wrong = [type(h).__name__ for h in found if not isinstance(h, Tensor)]
    if wrong or not several:
        got = f"{type(given).__name__} with a {wrong[0]} in it" if wrong else type(given).__name__
        raise TypeError(f"the function passed as surrogate must return a list of tensors, one for each parameter, got {got}")
    return found


def _set(slot: Slot, diagonals: Sequence[Tensor], source: str) -> None:
    if len(diagonals) != len(slot.param):
        raise ValueError(f"{source} gave {len(diagonals)} diagonals for {len(slot.param)} parameters")
    for i, (p, h) in enumerate(zip(slot.param, diagonals, strict=True)):
        if h.shape != p.shape:
            raise ValueError(f"{source} gave a diagonal of shape {tuple(h.shape)} for a parameter of shape {tuple(p.shape)}")
        h = h.detach()
        real = torch.view_as_real(h.resolve_conj()) if h.is_complex() else h
        slot.P_ab[i] = slot.P_bb[i] = real.to(dtype=buffer_dtype(p), device=p.device)


def _still(group: Mapping[str, Any]) -> bool:
    """lr = 0: nothing happens, and no diagonal is asked for. (An accelerator's lr is not read.)"""
    lr = group["lr"]
    return not (isinstance(lr, Tensor) and lr.device.type != "cpu") and not float(lr) > 0
