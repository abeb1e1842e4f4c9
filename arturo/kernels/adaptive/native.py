"""The passes in C++ for tensors of the host: one call per pass for all rows of a format, no temporaries, see ``adaptive.h``."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from arturo.kernels import native
from arturo.kernels.adaptive import Moves
from arturo.kernels.adaptive.row import AdaptiveRow

OBSERVE, MOVE = range(2)
_RECORD = struct.Struct("=7Q3q7d")  # struct LearnedTensor of cpp/adaptive.h
_FORMAT_OF = {dtypes: i for i, dtypes in enumerate(native.FORMATS)}


class Records(NamedTuple):
    """Rows of one kind as the C++ side sees them. Holds no references: it lives as long as the step."""

    kind: int
    rows: int
    packed: ctypes.Array[ctypes.c_char]


class Native:
    """Rows that :func:`takes` takes."""

    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        kinds: dict[int, list[AdaptiveRow]] = {}
        for row in rows:
            kinds.setdefault(_FORMAT_OF[row.param.dtype, row.mean.dtype, row.state["M"].dtype], []).append(row)
        self.rows = [row for alike in kinds.values() for row in alike]
        self.grads = [laid_out(row.grad, row.param) for row in self.rows]  # copies live as long as the step
        grads = iter(self.grads)
        self.records = [Records(kind, len(alike), _packed(alike, grads)) for kind, alike in kinds.items()]

    def observe(self) -> Tensor:
        return self._call(OBSERVE)

    def move(self, moves: Moves) -> None:
        self._call(MOVE, *(array("d", x.tolist()) for x in moves))

    def _call(self, which: int, *numbers: array[float]) -> Tensor:
        sums = torch.empty(len(self.rows), 7, dtype=torch.float64, device="cpu")
        threads, at = torch.get_num_threads(), 0
        for some in self.records:
            addresses = [x.buffer_info()[0] + 8 * at for x in numbers] or [0, 0, 0, 0]
            native.library().arturo_learned(
                ctypes.c_int32(some.kind), ctypes.c_int32(which), ctypes.c_int64(some.rows), some.packed,
                *map(ctypes.c_void_p, addresses), ctypes.c_int32(threads), ctypes.c_void_p(sums.data_ptr() + 56 * at),
            )  # fmt: skip
            at += some.rows
        return sums


def takes(row: AdaptiveRow) -> bool:
    """Whether C++ can reach its tensors."""
    if row.layout.native is None:
        row.layout.native = lies_alike(row)
    return row.layout.native and row.grad.dtype == row.param.dtype and native.is_plain(row.grad)


def lies_alike(row: AdaptiveRow) -> bool:
    """Whether there is a format for its dtypes, and its tensors are dense and lie in memory alike, but for the gradient."""
    param, mean, state = row.param, row.mean, row.state
    M, r, start = state["M"], state["r"], state.get("start")
    if (param.dtype, mean.dtype, M.dtype) not in _FORMAT_OF:
        return False
    alike = (param, mean, M, r) if start is None else (param, mean, M, r, start)
    if not all(native.is_plain(x) and x.shape == param.shape for x in alike):
        return False
    if all(x.is_contiguous() for x in alike):
        return True
    dense = param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last)
    return dense and all(x.stride() == param.stride() for x in alike)


def laid_out(grad: Tensor, param: Tensor) -> Tensor:
    """A gradient with the layout of its dense parameter: itself, or a copy."""
    if (grad.is_contiguous() and param.is_contiguous()) or grad.stride() == param.stride():
        return grad
    return torch.empty_like(param).copy_(grad)


def size_at(row: AdaptiveRow) -> int:
    """Where the size of its mean is kept between steps; 0: it is not, since a half-precision parameter may differ from it."""
    return row.layout.size.buffer_info()[0] if row.mean is row.param else 0


def _packed(rows: Sequence[AdaptiveRow], grads: Iterator[Tensor]) -> ctypes.Array[ctypes.c_char]:
    records = ctypes.create_string_buffer(_RECORD.size * len(rows))
    each, rounded = _RECORD.size, rows[0].rounded
    numbers: dict[tuple[int, int], tuple[float, ...]] = {}  # of a group's step: the same for most rows
    for i, row in enumerate(rows):
        state, group, start, mean = row.state, row.group, row.state.get("start"), row.mean
        key = id(group), row.t
        if key not in numbers:
            sign = -1.0 if group["maximize"] else 1.0
            numbers[key] = row.gain, row.share, row.weight, group["eps"], row.sure, sign, row.limit
        _RECORD.pack_into(
            records, i * each, row.param.data_ptr(), next(grads).data_ptr(), mean.data_ptr(), state["M"].data_ptr(),
            state["r"].data_ptr(), *((0, size_at(row)) if start is None else (start.data_ptr(), 0)), mean.numel(), row.first,
            row.seed if rounded else 0, *numbers[key],
        )  # fmt: skip
    return records
