"""The passes in C++ for CPU tensors: one call per pass for the whole list, no temporaries, see ``native.cpp``.

The extension is optional: without a compiler at install the eager kernel serves. Tensors it cannot take (half precision,
layouts that differ between a parameter, its gradient and its state) go to the eager kernel, in the same pass.
"""

from __future__ import annotations

import ctypes
import importlib

import torch
from torch import Tensor

from arturo.kernels import eager
from arturo.kernels.batch import Batch, largest_gradient
from arturo.trust_region import Scalar

OBSERVE, PROBE, MOVE = range(3)
PLAIN = (Tensor, torch.nn.Parameter)  # a subclass may keep its numbers elsewhere than data_ptr says


class Constants(ctypes.Structure):
    """``struct Constants`` of ``native.cpp``, field by field."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("q", "r", "rho", "rho_lam", "nu", "floor", "a_0", "decay")),
        *((name, ctypes.c_double) for name in ("s_w", "eta_w", "scale", "limit")),
        *((name, ctypes.c_int64) for name in ("has_floor", "consistent", "maximize")),
    ]


def _load() -> ctypes.CDLL | None:
    try:
        path = importlib.import_module("arturo.kernels._native").__file__
    except ImportError:
        return None
    return ctypes.CDLL(path)


_library = _load()


def available() -> bool:
    """Whether the extension was built."""
    return _library is not None


def library() -> ctypes.CDLL:
    """The extension, for ``arturo_pass``."""
    assert _library is not None
    return _library


def observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return _run(OBSERVE, batch, s_w, eta_w, 1.0)


def probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return _run(PROBE, batch, s_w, eta_w, 1.0)


def move(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    return _run(MOVE, batch, s_w, eta_w, scale)


def _run(kind: int, batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar) -> Tensor:
    """One call for the float32 tensors, one for the float64 ones, the rest eagerly."""
    fits: dict[torch.dtype, list[int]] = {torch.float32: [], torch.float64: []}
    rest: list[int] = []
    for i, tensors in enumerate(zip(*batch[1:10], strict=True)):
        (fits[tensors[0].dtype] if _fits(tensors) else rest).append(i)
    rows = [_call(kind, batch.select(chosen), s_w, eta_w, scale) for chosen in fits.values() if chosen]
    if rest:
        others = batch.select(rest)
        if kind == OBSERVE:
            rows.append(eager.observe(others, s_w, eta_w))
        elif kind == PROBE:
            rows.append(eager.probe(others, s_w, eta_w))
        else:
            rows.append(eager.move(others, s_w, eta_w, scale))
    return torch.cat(rows)


def _fits(tensors: tuple[Tensor, ...]) -> bool:
    param, strides = tensors[0], tensors[0].stride()
    if param.dtype not in (torch.float32, torch.float64) or not all(type(x) in PLAIN for x in tensors):
        return False
    dense = param.is_contiguous() or (param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last))
    return dense and all(x.dtype == param.dtype and x.stride() == strides for x in tensors)


def _call(kind: int, batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar) -> Tensor:
    k, n, dtype = batch.constants, len(batch.mean), batch.mean[0].dtype
    constants = Constants(
        q=k.q, r=k.r, rho=k.rho, rho_lam=k.rho_lam, nu=k.nu, a_0=k.a_0, decay=k.decay, s_w=s_w, eta_w=eta_w, scale=scale,
        limit=largest_gradient(dtype), floor=k.floor or 0.0, has_floor=k.floor is not None,
        consistent=k.consistent, maximize=k.maximize,
    )  # fmt: skip
    fields = (batch.mean, batch.grad, batch.prec, batch.a, batch.b, batch.P_aa, batch.P_ab, batch.P_bb)
    pointers = (ctypes.c_void_p * (8 * n))(*(x.data_ptr() for tensors in zip(*fields, strict=True) for x in tensors))
    sizes = (ctypes.c_int64 * n)(*(x.numel() for x in batch.mean))
    first = (ctypes.c_uint8 * n)(*(bool(x) for x in batch.first))
    sums = torch.empty(n, 4, dtype=torch.float64)
    library().arturo_pass(
        ctypes.c_int32(kind), ctypes.c_int32(dtype == torch.float64), ctypes.c_int64(n), sizes, pointers, first,
        ctypes.byref(constants), ctypes.c_int32(torch.get_num_threads()), ctypes.c_void_p(sums.data_ptr()),
    )  # fmt: skip
    return sums[:, 0] if kind == MOVE else sums[:, :3] if kind == PROBE else sums
