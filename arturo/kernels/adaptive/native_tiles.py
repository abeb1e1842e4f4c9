"""The passes over turned matrices in C++, products and refreshed bases included: one call per pass, see ``cpp/tiles.h``."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from arturo import kronecker
from arturo.kernels import native
from arturo.kernels.adaptive import Moves, tiles
from arturo.kernels.adaptive.native import Records
from arturo.kernels.adaptive.row import ROUNDINGS, AdaptiveRow
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned

OBSERVE, MOVE = range(2)
_RECORD = struct.Struct("=9Q8q14d")  # struct TiledMatrix of cpp/tiles.h
_MOVED, _MOVED_AT = struct.Struct("=3d"), _RECORD.size - 24  # keep, pull and length, its last fields


def takes(row: AdaptiveRow) -> bool:
    """Whether C++ can reach its tensors. The first step is another: it makes the bases."""
    if row.layout.native is None:
        row.layout.native = 0 if lies_in_order(row) else -1
    return row.layout.native >= 0 and row.t > 1 and native.is_plain(row.grad)


def lies_in_order(row: AdaptiveRow) -> bool:
    """Whether its state lies tile after tile, in the mean's precision."""
    state = [row.state[name] for name in ROUNDINGS if name in row.state]
    return (
        row.mean.dtype in (torch.float32, torch.float64)
        and all(x.dtype == row.mean.dtype and x.is_contiguous() for x in state)
        and all(map(native.is_plain, (row.param, row.mean, *state)))
    )


class NativeTiles:
    """Rows that :func:`takes` takes."""

    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        kinds: dict[bool, list[AdaptiveRow]] = {}
        for row in rows:
            kinds.setdefault(row.mean.dtype == torch.float64, []).append(row)
            if row.mean.dtype != row.param.dtype:
                follow_parameter(row.mean, row.param, None)
        self.rows = [row for alike in kinds.values() for row in alike]
        self.means = [row.mean.contiguous() for row in self.rows]  # copies live as long as the step
        self.grads = [row.grad.to(row.mean.dtype).contiguous() for row in self.rows]
        self.mean_s = torch.empty(
            sum(row.grid.tiles for row in self.rows if row.grid is not None), dtype=torch.float64, device="cpu"
        )
        self.records = self._records(kinds)

    def observe(self) -> Tensor:
        return self._call(OBSERVE)

    def move(self, moves: Moves) -> None:
        numbers = zip(moves.keep.tolist(), moves.pull.tolist(), moves.length.tolist(), strict=True)
        for some in self.records:
            for i, number in zip(range(some.rows), numbers, strict=False):
                _MOVED.pack_into(some.packed, i * _RECORD.size + _MOVED_AT, *number)
        self._call(MOVE)
        for row, mean in zip(self.rows, self.means, strict=True):
            if mean is not row.mean:
                row.mean.copy_(mean)
            if row.mean.dtype != row.param.dtype:
                row.param.copy_(row.mean)
        native.written([row.param for row in self.rows])

    def _call(self, which: int) -> Tensor:
        sums, at = torch.zeros(len(self.rows), 7, dtype=torch.float64, device="cpu"), 0
        for some in self.records:
            done = native.library().arturo_tiles(
                some.kind, which, some.rows, some.packed, torch.get_num_threads(), sums.data_ptr() + 56 * at
            )
            if not done:
                most = max((row.grid for row in self.rows if row.grid is not None), key=lambda grid: grid.height * grid.width)
                raise MemoryError(
                    f"three buffers for a tile of {most.height} x {most.width} in each of {torch.get_num_threads()} threads: "
                    'fewer threads need less, covariance="diagonal" none'
                )
            at += some.rows
        return sums

    def _records(self, kinds: dict[bool, list[AdaptiveRow]]) -> list[Records]:
        """By whether rows are in float64."""
        found, tensors, mean_s = [], zip(self.grads, self.means, strict=True), self.mean_s.data_ptr()
        for wide, rows in kinds.items():
            packed = ctypes.create_string_buffer(_RECORD.size * len(rows))
            for i, (row, (grad, mean)) in enumerate(zip(rows, tensors, strict=False)):
                grid, group, t, place = row.grid, row.group, row.t, tiles.first_tile(row)
                assert grid is not None
                due = kronecker.due(t, place, group["refresh"], grid.tiles)
                counted, steps = kronecker.counted(t, place, kronecker.COUNTED_EVERY, grid.tiles)
                _RECORD.pack_into(
                    packed, i * _RECORD.size, grad.data_ptr(), mean.data_ptr(),
                    *(row.state[name].data_ptr() if name in row.state else 0 for name in ("M", "r", "L", "Q_L", "R", "Q_R")),
                    mean_s, grid.tiles, grid.columns, grid.height, grid.width, *_turns(due, grid.tiles),
                    *_turns(counted, grid.tiles), kronecker.RIDGE, learned.factor_weight(kronecker.BASIS_BETA, t, steps),
                    row.gain, row.share, row.weight, group["eps"], row.sure, learned.FLOOR, learned.FREEDOM,
                    -1.0 if group["maximize"] else 1.0, row.limit, 0.0, 0.0, 0.0,
                )  # fmt: skip
                mean_s += 8 * grid.tiles
            found.append(Records(wide, len(rows), packed))
        return found


def _turns(some: slice | None, count: int) -> tuple[int, int]:
    """The first tile of a slice and the steps to the others; none is beyond the last."""
    return (count, 1) if some is None else (some.start or 0, some.step or 1)
