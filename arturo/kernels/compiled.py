"""The passes as generated code: dynamic-shape ``torch.compile``d kernels, for any device that Inductor serves.

One kernel serves all tensors, whatever their size: compiling the whole list at once takes minutes and starts anew for every
model. Every number that changes from step to step or from group to group comes in a tensor, so nothing compiles twice but
for another dtype or another kind of option. Tensors it does not take (a single entry, layouts that differ between a parameter,
its gradient and its state) go to the eager kernel, in the same pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.kernels import eager, native
from arturo.kernels.batch import Batch, Constants, sum_dtype
from arturo.trust_region import Scalar

MOST_VARIANTS = 64  # dtypes of parameter and state, init, floor, device: each combination compiles once


class Prepared(NamedTuple):
    """Flat views for the compiled kernels, a batch for each tensor, and what the eager kernel takes instead."""

    flat: list[Batch]
    rest: Batch | None


def prepare(batch: Batch) -> Prepared:
    k, flat, rest = None, [], []
    for i, (*tensors, first, seed, offset) in enumerate(zip(*batch.columns, strict=True)):
        if not _alike(tensors):
            rest.append(i)
            continue
        device = tensors[0].device
        k = _as_tensors(batch.constants, device) if k is None else k
        param, grad, mean, *state = (_flat(x) for x in tensors)
        if tensors[0] is tensors[2]:
            param = mean  # the same object: two views of what is written would cost a copy
        numbers = _number(first, device, torch.bool), _number(seed, device, torch.int64)
        columns = [[x] for x in (param, grad, mean, *state, *numbers, offset)]
        flat.append(Batch(k, *columns, batch.alive))  # type: ignore[call-arg, arg-type]
    return Prepared(flat, eager.prepare(batch.select(rest)) if rest else None)


def observe(prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
    rows = _each(_observe, prepared.flat, s_w, eta_w)
    return _joined(rows, None if prepared.rest is None else eager.observe(prepared.rest, s_w, eta_w))


def probe(prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
    rows = _each(_probe, prepared.flat, s_w, eta_w)
    return _joined(rows, None if prepared.rest is None else eager.probe(prepared.rest, s_w, eta_w))


def move(prepared: Prepared, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    rows = _each(_move_mean, prepared.flat, s_w, eta_w, scale, moving)
    _each(_move_precision, prepared.flat, moving)
    return _joined(rows, None if prepared.rest is None else eager.move(prepared.rest, s_w, eta_w, scale, moving))


def _observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return eager.observe(batch, s_w, eta_w)


def _probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return eager.probe(batch, s_w, eta_w)


def _move_mean(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None) -> Tensor:
    return eager.move_mean(batch, s_w, eta_w, scale, moving)


def _move_precision(batch: Batch, moving: Tensor | None) -> None:
    """By itself: Inductor does not write in place what a sum in the same loop reads, and a temporary costs more than a pass."""
    eager.move_precision(batch, moving)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    if "recompile_limit" in inspect.signature(torch.compile).parameters:  # torch 2.12 and later
        options["recompile_limit"] = MOST_VARIANTS
    return torch.compile(function, **options)


def _each(function: Callable[..., Any], flat: list[Batch], *numbers: Scalar | None) -> list[Any]:
    """The rows of every tensor, one call each."""
    if not flat:
        return []
    run, device = _compiled(function), flat[0].mean[0].device
    scalars = [_number(x, device, sum_dtype(device)) for x in numbers]
    try:
        return [run(one, *scalars) for one in flat]
    except Exception as error:  # a compiler's errors have no common base
        raise RuntimeError(
            f"fused=True: torch.compile could not make or run the kernel on {device} ({type(error).__name__}; the C++ "
            f"extension is {'there' if native.available() else 'not built'}). Use fused=None for the best there is"
        ) from error


def _joined(rows: list[Tensor], others: Tensor | None) -> Tensor:
    return torch.cat(rows if others is None else [*rows, others])


def _alike(row: list[Tensor]) -> bool:
    param = row[0]
    if param.numel() < 2 or not all(type(x) in native.PLAIN for x in row):
        return False
    dense = param.is_contiguous() or (param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last))
    return dense and all(x.stride() == param.stride() for x in row)


def _flat(x: Tensor) -> Tensor:
    """The same memory as a vector of its own: a view would be compiled for the number of dimensions of its base."""
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage(), x.storage_offset(), (x.numel(),), (1,))


def _number(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A number of the host as a 0-d tensor, so that its value is not compiled in; tensors and None as they are."""
    return x if x is None or isinstance(x, Tensor) else torch.tensor(x, device=device, dtype=dtype)


def _as_tensors(k: Constants, device: torch.device) -> Constants:
    values = {
        name: _number(value, device, sum_dtype(device))
        for name, value in k._asdict().items()
        if not isinstance(value, bool) and not (name == "rho_lam" and value == 0)
    }
    return k._replace(**values)
