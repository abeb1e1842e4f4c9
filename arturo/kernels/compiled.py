"""The passes as generated code: one dynamic-shape ``torch.compile``d kernel per pass, for any device that Inductor serves.

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

MOST_VARIANTS = 64  # dtypes of parameter and state, maximize, init, floor, device: each combination compiles once


class Prepared(NamedTuple):
    """Flat views for the compiled kernels, and what the eager kernel takes instead."""

    flat: Batch | None
    rest: Batch | None


def prepare(batch: Batch) -> Prepared:
    fits = [_alike(row) for row in zip(*batch.columns[:9], strict=True)]
    flat = batch.select([i for i, fit in enumerate(fits) if fit]) if any(fits) else None
    rest = batch.select([i for i, fit in enumerate(fits) if not fit]) if not all(fits) else None
    if flat is not None:
        device = flat.mean[0].device
        param, grad, mean, prec, a, b, *P = ([_flat(x) for x in column] for column in flat.columns[:9])
        # The same object where the mean is the parameter: two views of what is written would cost a copy.
        param = [y if x is z else w for x, y, z, w in zip(flat.param, mean, flat.mean, param, strict=True)]
        first = [_number(x, device, torch.bool) for x in flat.first]
        seed = [_number(x, device, torch.int64) for x in flat.seed]
        constants = _as_tensors(flat.constants, device)
        flat = Batch(constants, param, grad, mean, prec, a, b, P[0], P[1], P[2], first, seed, flat.offset, flat.alive)
    return Prepared(flat, None if rest is None else eager.prepare(rest))


def observe(prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
    rows = _each(_observe, prepared.flat, s_w, eta_w)
    return _joined(rows, None if prepared.rest is None else eager.observe(prepared.rest, s_w, eta_w))


def probe(prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
    rows = _each(_probe, prepared.flat, s_w, eta_w)
    return _joined(rows, None if prepared.rest is None else eager.probe(prepared.rest, s_w, eta_w))


def move(prepared: Prepared, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    rows = _each(_move, prepared.flat, s_w, eta_w, scale, moving)
    return _joined(rows, None if prepared.rest is None else eager.move(prepared.rest, s_w, eta_w, scale, moving))


def _observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return eager.observe(batch, s_w, eta_w)


def _probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return eager.probe(batch, s_w, eta_w)


def _move(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None) -> Tensor:
    return eager.move(batch, s_w, eta_w, scale, moving)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    options: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    if "recompile_limit" in inspect.signature(torch.compile).parameters:  # torch 2.12 and later
        options["recompile_limit"] = MOST_VARIANTS
    return torch.compile(function, **options)


def _each(function: Callable[..., Tensor], flat: Batch | None, *numbers: Scalar | None) -> list[Tensor]:
    """The rows of every tensor, one call each."""
    if flat is None:
        return []
    run, device = _compiled(function), flat.mean[0].device
    scalars = [_number(x, device, sum_dtype(device)) for x in numbers]
    try:
        return [run(flat.select([i]), *scalars) for i in range(len(flat.mean))]
    except Exception as error:  # a compiler's errors have no common base
        raise RuntimeError(
            f"fused=True: torch.compile could not make or run the kernel on {device} ({type(error).__name__}; the C++ "
            f"extension is {'there' if native.available() else 'not built'}). Use fused=None for the best there is"
        ) from error


def _joined(rows: list[Tensor], others: Tensor | None) -> Tensor:
    return torch.cat(rows if others is None else [*rows, others])


def _alike(row: tuple[Tensor, ...]) -> bool:
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
