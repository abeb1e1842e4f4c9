"""The passes in C++ for tensors of the host: one call per pass for all rows of a format, no temporaries, see ``adaptive.h``."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from arturo.kernels import native
from arturo.kernels.adaptive import Moves
from arturo.kernels.adaptive.row import AdaptiveRow

OBSERVE, MOVE = range(2)
_STAYS, _OF_STEP, _NUMBERS = map(struct.Struct, ("=6Qq", "=Q2q", "=7d"))  # struct LearnedTensor of cpp/adaptive.h
_FORMAT_OF = {dtypes: i for i, dtypes in enumerate(native.FORMATS)}


class Records(NamedTuple):
    """Rows of one kind as the C++ side sees them. Holds no references: it lives as long as the step."""

    kind: int
    rows: int
    packed: bytes | ctypes.Array[ctypes.c_char]


class Native:
    """Rows that :func:`takes` takes."""

    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        kinds: dict[int, list[AdaptiveRow]] = {}
        for row in rows:
            assert row.layout.native is not None
            kinds.setdefault(row.layout.native, []).append(row)
        self.rows = [row for alike in kinds.values() for row in alike]
        self.grads: list[Tensor] = []  # copies live as long as the step
        self.records = [Records(kind, len(alike), _packed(alike, self.grads)) for kind, alike in kinds.items()]

    def observe(self) -> Tensor:
        sums = torch.empty(len(self.rows), 7, dtype=torch.float64, device="cpu")
        self._call(OBSERVE, (0, 0, 0, 0), 0, sums.data_ptr())
        return sums

    def move(self, moves: Moves) -> None:
        numbers = [x if isinstance(x, array) else array("d", x.tolist()) for x in moves]
        self._call(MOVE, [x.buffer_info()[0] for x in numbers], 8, 0)
        native.written([row.param for row in self.rows])

    def _call(self, which: int, numbers: Sequence[int], width: int, sums: int) -> None:
        """``numbers`` and ``sums`` are addresses of what a row has ``width`` and 56 bytes of; 0: nothing is there."""
        threads, at = torch.get_num_threads(), 0
        for some in self.records:
            native.library().arturo_learned(
                some.kind, which, some.rows, some.packed, *[x + width * at for x in numbers], threads, sums and sums + 56 * at
            )
            at += some.rows


def takes(row: AdaptiveRow) -> bool:
    """Whether C++ can reach its tensors."""
    layout, grad = row.layout, row.grad
    if layout.native is None:
        dtypes = row.param.dtype, row.mean.dtype, row.state["M"].dtype
        layout.native = _FORMAT_OF.get(dtypes, -1) if lie_alike(row) else -1
    return layout.native >= 0 and grad.dtype == row.param.dtype and native.is_plain(grad)


def lie_alike(row: AdaptiveRow) -> bool:
    """Whether its tensors are dense and lie in memory alike, but for the gradient."""
    param, mean, state = row.param, row.mean, row.state
    M, r, start = state["M"], state["r"], state.get("start")
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


def _packed(rows: Sequence[AdaptiveRow], grads: list[Tensor]) -> bytes:
    """The records of rows of one kind: what stays is kept with a layout, the numbers of a step are the same for most rows."""
    pieces: list[bytes] = []
    rounded, group, t, numbers = rows[0].rounded, None, None, b""
    for row in rows:
        if row.group is not group or row.t != t:
            group, t = row.group, row.t
            sign = -1.0 if group["maximize"] else 1.0
            numbers = _NUMBERS.pack(row.gain, row.share, row.weight, group["eps"], row.sure, sign, row.limit)
        grad = laid_out(row.grad, row.param)
        grads.append(grad)
        of_step = _OF_STEP.pack(grad.data_ptr(), row.first, row.seed if rounded else 0)
        pieces += row.layout.record or _staying(row), of_step, numbers
    return b"".join(pieces)


def _staying(row: AdaptiveRow) -> bytes:
    tensors = [x.data_ptr() for x in (row.param, row.mean, row.state["M"], row.state["r"])]
    of_vector = (0, size_at(row)) if row.start is None else (row.start.data_ptr(), 0)
    row.layout.record = _STAYS.pack(*tensors, *of_vector, row.mean.numel())
    return row.layout.record
