"""The passes as generated code: dynamic-shape ``torch.compile``d kernels, for any device that Inductor serves.

One kernel serves all tensors, whatever their size: compiling the whole list at once takes minutes and starts anew for every
model. Every number that changes from step to step or from group to group comes in a tensor, so nothing compiles twice but
for another dtype or another kind of option. Tensors it does not take (a single entry, layouts that differ between a parameter,
its gradient and its state) go to the eager kernel, in the same pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar
from arturo.kernels import eager, native
from arturo.kernels.batch import Constants, Row, runs, sum_dtype

MOST_VARIANTS = 64  # dtypes of parameter and state, init, floor, device: each combination compiles once


class CompiledSweep:
    """Flat views for the compiled kernels; what they do not take is the eager kernel's."""

    def __init__(self, rows: Sequence[Row], k: Constants) -> None:
        self.whole = rows
        taken: list[Row] = []
        rest: list[Row] = []
        for run, tensors in runs(rows):
            (taken if _alike(tensors) else rest).append(run)
        self.flat = [_flat_row(run) for run in taken]
        self.k = _as_tensors(k, taken[0].param.device) if taken else k
        self.rest = eager.EagerSweep(rest, k) if rest else None

    def observe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        sums = self._each(_observe, s_w, eta_w)
        return torch.cat(sums if self.rest is None else [*sums, self.rest.observe(s_w, eta_w)])

    def probe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        sums = self._each(_probe, s_w, eta_w)
        return torch.cat(sums if self.rest is None else [*sums, self.rest.probe(s_w, eta_w)])

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None = None) -> Tensor:
        sums = self._each(_move_mean, s_w, eta_w, factor, moving)
        self._each(_move_precision, moving)
        return torch.cat(sums if self.rest is None else [*sums, self.rest.move(s_w, eta_w, factor, moving)])

    def count(self, eta: Scalar, moving: Tensor | None = None) -> None:
        eager.count(self.whole, eta, moving)

    def _each(self, function: Callable[..., Any], *numbers: Scalar | None) -> list[Any]:
        """The sums of every tensor, one call each."""
        if not self.flat:
            return []
        run, device = _compiled(function), self.flat[0].mean.device
        scalars = [_number(x, device, sum_dtype(device)) for x in numbers]
        try:
            return [run(row, self.k, *scalars) for row in self.flat]
        except Exception as error:  # a compiler's errors have no common base
            raise RuntimeError(
                f"fused=True: torch.compile could not make or run the kernel on {device} ({type(error).__name__}; the C++ "
                f"extension is {'there' if native.available() else 'not built'}). Use fused=None for the best there is"
            ) from error


def _observe(row: Row, k: Constants, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return eager.stack([eager.observe_row(row, k, s_w, eta_w)])


def _probe(row: Row, k: Constants, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return eager.stack([eager.probe_row(row, k, s_w, eta_w)])


def _move_mean(row: Row, k: Constants, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None) -> Tensor:
    return eager.stack([eager.move_mean(row, k, s_w, eta_w, factor, moving)])


def _move_precision(row: Row, k: Constants, moving: Tensor | None) -> None:
    """By itself: Inductor does not write in place what a sum in the same loop reads, and a temporary costs more than a pass."""
    eager.move_precision(row, k, moving)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    if "recompile_limit" in inspect.signature(torch.compile).parameters:  # torch 2.12 and later
        options["recompile_limit"] = MOST_VARIANTS
    return torch.compile(function, **options)


def _alike(tensors: Sequence[Tensor]) -> bool:
    param = tensors[0]
    if param.numel() < 2 or not all(type(x) in native.PLAIN for x in tensors):
        return False
    dense = param.is_contiguous() or (param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last))
    return dense and all(x.stride() == param.stride() for x in tensors)


def _flat_row(row: Row) -> Row:
    device = row.param.device
    return row.map(_flat)._replace(first=_number(row.first, device, torch.bool), seed=_number(row.seed, device, torch.int64))


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
        if not isinstance(value, (bool, tuple)) and not (name == "rho_lam" and value == 0)
    }
    return k._replace(**values)
