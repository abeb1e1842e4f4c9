"""The passes in C++ for CPU tensors: one call per pass for the whole list, no temporaries, see ``cpp/native.cpp``.

The extension is optional: without a compiler at install the eager kernel serves. Tensors it cannot take (layouts that differ
between a parameter, its gradient and its state, tensor subclasses) go to the eager kernel, in the same pass.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import warnings
from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from arturo.kernels import eager
from arturo.kernels.batch import Batch, largest_gradient
from arturo.trust_region import Scalar

OBSERVE, PROBE, MOVE = range(3)
PLAIN = (Tensor, torch.nn.Parameter)  # a subclass may keep its numbers elsewhere than data_ptr says
FORMATS = (  # dtypes of parameter and gradient, of the mean, of the rest; the order of FORMATS in cpp/native.cpp
    (torch.float32, torch.float32, torch.float32),
    (torch.float64, torch.float64, torch.float64),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float16, torch.float32, torch.float32),
    (torch.float32, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.float16, torch.float32, torch.bfloat16),
)
_FORMAT_OF = {dtypes: i for i, dtypes in enumerate(FORMATS)}


class Constants(ctypes.Structure):
    """``struct Constants`` of ``cpp/chunk.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_double) for name in ("q", "r", "rho", "rho_lam", "nu", "floor", "a_0", "decay")),
        *((name, ctypes.c_double) for name in ("s_w", "eta_w", "scale", "limit", "factor")),
        *((name, ctypes.c_int64) for name in ("has_floor", "consistent")),
    ]


class Table(NamedTuple):
    """Tensors of one format as the C++ side sees them. Holds no references: it lives as long as the step."""

    format: int
    tensors: int
    sizes: array[int]
    pointers: array[int]
    first: array[int]
    seeds: array[int]
    offsets: array[int]
    constants: Constants


class Prepared(NamedTuple):
    """The tables, and what the eager kernel takes instead."""

    tables: list[Table]
    rest: Batch | None


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


@functools.cache
def say_once_that_it_is_missing() -> None:
    """A warning, once per process."""
    warnings.warn(
        "arturo's C++ kernel was not built when it was installed (no C++ compiler?), so the eager kernel serves: the same "
        "steps, some twenty times slower. Install a compiler and reinstall arturo from source; or pass fused=True for a kernel "
        "made by torch.compile, or fused=False to do without this message",
        stacklevel=2,
    )


def prepare(batch: Batch) -> Prepared:
    """Sort the tensors by format and write down where they are."""
    chosen: dict[int, list[int]] = {}
    rest: list[int] = []
    tensors = batch.columns[:9]
    for i, row in enumerate(zip(*tensors, strict=True)):
        found = _format(row)
        if found is None:
            rest.append(i)
        else:
            chosen.setdefault(found, []).append(i)
    tables = [_table(found, batch.select(indices)) for found, indices in chosen.items()]
    return Prepared(tables, eager.prepare(batch.select(rest)) if rest else None)


def observe(prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
    rows = [_call(table, OBSERVE, s_w, eta_w, 1.0) for table in prepared.tables]
    return _joined(rows, None if prepared.rest is None else eager.observe(prepared.rest, s_w, eta_w))


def probe(prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
    rows = [_call(table, PROBE, s_w, eta_w, 1.0)[:, :3] for table in prepared.tables]
    return _joined(rows, None if prepared.rest is None else eager.probe(prepared.rest, s_w, eta_w))


def move(prepared: Prepared, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    rows = [_call(table, MOVE, s_w, eta_w, scale)[:, 0] for table in prepared.tables]
    return _joined(rows, None if prepared.rest is None else eager.move(prepared.rest, s_w, eta_w, scale))


def count(steps: list[Tensor], etas: list[Tensor], eta: float) -> None:
    """One more step and this eta in every parameter's state: two numbers each, for which two torch calls are dear."""
    expected = {torch.float32: steps, torch.float64: etas}
    if _library is not None and all(x.dtype == dtype and type(x) in PLAIN for dtype, xs in expected.items() for x in xs):
        pointers = array("Q", [x.data_ptr() for x in (*steps, *etas)])
        _library.arturo_count(ctypes.c_int64(len(steps)), ctypes.c_void_p(pointers.buffer_info()[0]), ctypes.c_double(eta))
    else:
        torch._foreach_add_(steps, 1)
        torch._foreach_zero_(etas)
        torch._foreach_add_(etas, eta)


def _joined(rows: list[Tensor], others: Tensor | None) -> Tensor:
    rows = rows if others is None else [*rows, others]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _format(row: tuple[Tensor, ...]) -> int | None:
    """The row of :data:`FORMATS` that fits, if the nine tensors are dense and lie in memory alike."""
    param, grad, mean, prec, a, b, P_aa, P_ab, P_bb = row
    found = _FORMAT_OF.get((param.dtype, mean.dtype, prec.dtype))
    if (
        found is None
        or grad.dtype != param.dtype
        or not prec.dtype == a.dtype == b.dtype == P_aa.dtype == P_ab.dtype == P_bb.dtype
    ):
        return None
    if not all(type(x) in PLAIN for x in row):
        return None
    if all(x.is_contiguous() for x in row):
        return found
    strides = param.stride()
    dense = param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last)
    return found if dense and all(x.stride() == strides for x in row) else None


def _table(found: int, batch: Batch) -> Table:
    k, dtype = batch.constants, batch.mean[0].dtype
    constants = Constants(
        q=k.q, r=k.r, rho=k.rho, rho_lam=k.rho_lam, nu=k.nu, a_0=k.a_0, decay=k.decay,
        limit=largest_gradient(dtype, k.factor), factor=k.factor, floor=k.floor or 0.0, has_floor=k.floor is not None,
        consistent=k.consistent,
    )  # fmt: skip
    rows = zip(*batch.columns[:9], strict=True)
    return Table(
        found,
        len(batch.mean),
        sizes=array("q", [x.numel() for x in batch.mean]),
        pointers=array("Q", [x.data_ptr() for row in rows for x in row]),
        first=array("B", batch.first),
        seeds=array("I", batch.seed),
        offsets=array("q", batch.offset),
        constants=constants,
    )


def _call(table: Table, kind: int, s_w: Scalar, eta_w: Scalar, scale: Scalar) -> Tensor:
    constants = table.constants
    constants.s_w, constants.eta_w, constants.scale = s_w, eta_w, scale
    sums = torch.empty(table.tensors, 4, dtype=torch.float64)
    addresses = (ctypes.c_void_p(x.buffer_info()[0]) for x in table[2:7])
    library().arturo_pass(
        ctypes.c_int32(table.format), ctypes.c_int32(kind), ctypes.c_int64(table.tensors), *addresses,
        ctypes.byref(constants), ctypes.c_int32(torch.get_num_threads()), ctypes.c_void_p(sums.data_ptr()),
    )  # fmt: skip
    return sums
