"""The passes over turned matrices on the host: products by torch, everything between them in C++, see ``tiles.h``.

Tiles go through a step in batches that stay in cache: gradients are packed, turned, observed; steps are scaled, turned back,
unpacked. Matrices with few small tiles share a batch with others of the same tile, and their bases are copied together.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.kernels import native
from arturo.kernels.adaptive import tiles
from arturo.kernels.adaptive.row import Row
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned

PACK, OBSERVE, SCALE, UNPACK = range(4)
LEAST, MOST = 1 << 15, 1 << 17  # entries: a batch below the first takes in another matrix, none exceeds the second
_RECORD = struct.Struct("=7Q5q10d")  # struct TileRange of cpp/tiles.h


class Part(NamedTuple):
    """``tiles`` tiles of a row from ``first`` on; ``number`` is the row's place in the list, ``place`` that of its tiles."""

    number: int
    row: Row
    grad: Tensor  # row by row
    mean: Tensor  # row by row: a copy where the row's is not
    first: int
    tiles: int
    place: int


Batch = list[Part]  # all of the same tile


def takes(row: Row) -> bool:
    """Whether C++ can reach the tensors."""
    state = row.state["M"], row.state["r"]
    return (
        row.t > 1  # the first step is another: it makes the bases
        and row.mean.dtype in (torch.float32, torch.float64)
        and all(x.dtype == row.mean.dtype and x.is_contiguous() for x in state)
        and all(type(x) in native.PLAIN and x.device.type == "cpu" for x in (row.param, row.grad, row.mean, *state))
    )


class NativeTiles:
    """Rows that :func:`takes` takes."""

    def __init__(self, rows: Sequence[Row]) -> None:
        kinds: dict[Any, list[Row]] = {}
        for row in rows:
            assert row.grid is not None
            kinds.setdefault((row.grid[2:], row.mean.dtype), []).append(row)  # sides of a tile, and which of them turn
        self.rows = [row for alike in kinds.values() for row in alike]
        self.batches = list(_batches(self.rows))
        self.seen = bytearray(sum(row.grid.tiles for row in self.rows if row.grid is not None))
        self.mean_s = torch.zeros(len(self.seen), dtype=torch.float64)
        self.scratch: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        for batch in self.batches:
            dtype, n = batch[0].row.mean.dtype, _size(batch)
            if dtype not in self.scratch or len(self.scratch[dtype][0]) < n:
                self.scratch[dtype] = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)

    def observe(self) -> Tensor:
        sums = torch.zeros(len(self.rows), 4, dtype=torch.float64)
        for row in self.rows:
            tiles.refresh(row)
        for batch in self.batches:
            X, Y = self._buffers(batch)
            self._call(PACK, batch, X, sums)
            Q_L, Q_R = _bases(batch)
            if Q_L is not None:
                X, Y = torch.bmm(Q_L.mT, X, out=Y), X
            if Q_R is not None:
                X, Y = torch.bmm(X, Q_R, out=Y), X
            self._call(OBSERVE, batch, X, sums)
            self._follow_factors(batch, X)
        return sums

    def move(self, keep: Tensor, length: Tensor) -> None:
        numbers = list(zip(keep.tolist(), length.tolist(), strict=True))
        for batch in self.batches:
            X, Y = self._buffers(batch)
            self._call(SCALE, batch, X)
            Q_L, Q_R = _bases(batch)
            if Q_L is not None:
                X, Y = torch.bmm(Q_L, X, out=Y), X
            if Q_R is not None:
                X, Y = torch.bmm(X, Q_R.mT, out=Y), X
            self._call(UNPACK, batch, X, numbers=numbers)
        for _, row, _, mean, *_ in (part for batch in self.batches for part in batch if part.first == 0):
            if mean is not row.mean:
                row.mean.copy_(mean)
            if row.mean.dtype != row.param.dtype:
                row.param.copy_(row.mean)

    def _buffers(self, batch: Batch) -> tuple[Tensor, ...]:
        grid, n = batch[0].row.grid, _size(batch)
        assert grid is not None
        return tuple(x[:n].view(-1, grid.height, grid.width) for x in self.scratch[batch[0].row.mean.dtype])

    def _follow_factors(self, batch: Batch, E: Tensor) -> None:
        at = 0
        for part in batch:
            seen = None
            if self.seen.find(0, part.place, part.place + part.tiles) >= 0:
                seen = torch.frombuffer(self.seen, dtype=torch.uint8)[part.place : part.place + part.tiles].view(-1, 1, 1)
            tiles.follow_factors(part.row, E[at : at + part.tiles], seen, part.first)
            at += part.tiles

    def _call(
        self, kind: int, batch: Batch, turned: Tensor, sums: Tensor | None = None, numbers: Sequence[tuple[float, float]] = ()
    ) -> None:
        """One pass over a batch; ``sums`` of its rows are added to."""
        records = ctypes.create_string_buffer(_RECORD.size * len(batch))
        seen = ctypes.addressof(ctypes.c_char.from_buffer(self.seen))
        mean_s, at, width = self.mean_s.data_ptr(), turned.data_ptr(), turned.element_size()
        for i, (index, row, grad, mean, first, count, place) in enumerate(batch):
            grid, state, group = row.grid, row.state, row.group
            assert grid is not None
            size = grid.height * grid.width
            skipped = first * size * width
            keep, length = numbers[index] if numbers else (0.0, 0.0)
            _RECORD.pack_into(
                records, i * _RECORD.size, grad.data_ptr(), mean.data_ptr(), state["M"].data_ptr() + skipped,
                state["r"].data_ptr() + skipped, at, seen + place, mean_s + 8 * place, first, count, grid.columns,
                grid.height, grid.width, row.gain, row.share, row.weight, group["eps"], learned.SURE, learned.FLOOR,
                -1.0 if group["maximize"] else 1.0, row.limit, keep, length,
            )  # fmt: skip
            at += count * size * width
        out = torch.zeros(len(batch), 4, dtype=torch.float64)
        native.library().arturo_tiles(
            ctypes.c_int32(turned.dtype == torch.float64), ctypes.c_int32(kind), ctypes.c_int64(len(batch)), records,
            ctypes.c_int32(torch.get_num_threads()), ctypes.c_void_p(out.data_ptr()),
        )  # fmt: skip
        if sums is not None:
            for part, line in zip(batch, out, strict=True):
                sums[part.number] += line


def _batches(rows: Sequence[Row]) -> Iterator[Batch]:
    """Rows of equal tiles stand together."""
    batch: Batch = []
    place = 0
    for index, row in enumerate(rows):
        grid = row.grid
        assert grid is not None
        if row.mean.dtype != row.param.dtype:
            follow_parameter(row.mean, row.param, None)
        grad, mean = row.grad.to(row.mean.dtype).contiguous(), row.mean.contiguous()
        most = max(MOST // (grid.height * grid.width), 1)
        for first in range(0, grid.tiles, most):
            part = Part(index, row, grad, mean, first, min(most, grid.tiles - first), place + first)
            if batch and not (_alike(batch[0].row, row) and _size(batch) < LEAST and _size([*batch, part]) <= MOST):
                yield batch
                batch = []
            batch.append(part)
        place += grid.tiles
    if batch:
        yield batch


def _alike(a: Row, b: Row) -> bool:
    return a.grid is not None and b.grid is not None and a.grid[2:] == b.grid[2:] and a.mean.dtype == b.mean.dtype


def _size(batch: Batch) -> int:
    """Entries."""
    grid = batch[0].row.grid
    assert grid is not None
    return sum(part.tiles for part in batch) * grid.height * grid.width


def _bases(batch: Batch) -> tuple[Tensor | None, ...]:
    """``Q_L`` and ``Q_R`` of a batch's tiles, None for a side that does not turn."""
    found: list[Tensor | None] = []
    for name in ("Q_L", "Q_R"):
        if name not in batch[0].row.state:
            found.append(None)
            continue
        parts = [part.row.state[name].flatten(0, 1)[part.first : part.first + part.tiles] for part in batch]
        found.append(parts[0] if len(parts) == 1 else torch.cat(parts))
    return tuple(found)
