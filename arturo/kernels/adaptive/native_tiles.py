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

from arturo import kronecker
from arturo.kernels import native
from arturo.kernels.adaptive import tiles
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned

PACK, OBSERVE, SCALE, UNPACK = range(4)
LEAST, MOST = 1 << 15, 1 << 18  # entries: a batch below the first takes in another matrix, none exceeds the second
_RECORD = struct.Struct("=7Q5q11d")  # struct TileRange of cpp/tiles.h
_TURNED, _FACTORS = struct.Struct("=Q"), struct.Struct("=2d")  # its fields that change from pass to pass, and where they are
_TURNED_AT, _FACTORS_AT = 4 * 8, 21 * 8


class Part(NamedTuple):
    """``tiles`` tiles of a row from ``first`` on; ``place`` is that of its first tile among the tiles of all rows."""

    row: AdaptiveRow
    grad: Tensor  # row by row
    mean: Tensor  # row by row: a copy where the row's is not
    first: int
    tiles: int
    place: int


def takes(row: AdaptiveRow) -> bool:
    """Whether C++ can reach the tensors."""
    state = row.state["M"], row.state["r"]
    return (
        row.t > 1  # the first step is another: it makes the bases
        and row.mean.dtype in (torch.float32, torch.float64)
        and all(x.dtype == row.mean.dtype and x.is_contiguous() for x in state)
        and all(type(x) in native.PLAIN and x.device.type == "cpu" for x in (row.param, row.grad, row.mean, *state))
    )


class Batch:
    """Tiles of one shape that go through a pass together: of neighbouring rows, from ``number`` on."""

    def __init__(self, parts: Sequence[Part], number: int, seen: int, mean_s: int) -> None:
        self.parts, self.number = parts, number
        self.records = ctypes.create_string_buffer(_RECORD.size * len(parts))
        grid = parts[0].row.grid
        assert grid is not None
        self.tile, self.dtype = (grid.height, grid.width), parts[0].row.mean.dtype
        width = self.dtype.itemsize
        self.offsets = [0]  # of the parts, in bytes
        for i, (row, grad, mean, first, some, place) in enumerate(parts):
            assert row.grid is not None
            state, group, size = row.state, row.group, grid.height * grid.width * width
            _RECORD.pack_into(
                self.records, i * _RECORD.size, grad.data_ptr(), mean.data_ptr(), state["M"].data_ptr() + first * size,
                state["r"].data_ptr() + first * size, 0, seen + place, mean_s + 8 * place, first, some, row.grid.columns,
                *self.tile, row.gain, row.share, row.weight, group["eps"], learned.SURE, learned.FLOOR, learned.FREEDOM,
                -1.0 if group["maximize"] else 1.0, row.limit, 0.0, 0.0,
            )  # fmt: skip
            self.offsets.append(self.offsets[-1] + some * size)

    @property
    def entries(self) -> int:
        return self.offsets[-1] // self.dtype.itemsize

    def bases(self) -> tuple[Tensor | None, ...]:
        """``Q_L`` and ``Q_R`` of the tiles, None for a side that does not turn."""
        return tuple(self._joined(name) if name in self.parts[0].row.state else None for name in ("Q_L", "Q_R"))

    def _joined(self, name: str) -> Tensor:
        all_of_it = [(part, part.row.state[name].flatten(0, 1)) for part in self.parts]
        some = [x if part.tiles == len(x) else x[part.first : part.first + part.tiles] for part, x in all_of_it]
        return some[0] if len(some) == 1 else torch.cat(some)

    def run(self, kind: int, turned: Tensor, sums: int, numbers: Sequence[tuple[float, float]] = ()) -> None:
        """One pass; the sums of its rows are added to what is at the address ``sums``."""
        at = turned.data_ptr()
        for i in range(len(self.parts)):
            _TURNED.pack_into(self.records, i * _RECORD.size + _TURNED_AT, at + self.offsets[i])
            if numbers:
                _FACTORS.pack_into(self.records, i * _RECORD.size + _FACTORS_AT, *numbers[self.number + i])
        native.library().arturo_tiles(
            ctypes.c_int32(self.dtype == torch.float64), ctypes.c_int32(kind), ctypes.c_int64(len(self.parts)), self.records,
            ctypes.c_int32(torch.get_num_threads()), ctypes.c_void_p(sums + 48 * self.number),
        )  # fmt: skip


class NativeTiles:
    """Rows that :func:`takes` takes."""

    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        kinds: dict[Any, list[AdaptiveRow]] = {}
        for row in rows:
            assert row.grid is not None
            kinds.setdefault((row.grid[2:], row.mean.dtype), []).append(row)  # sides of a tile, and which of them turn
        self.rows = [row for alike in kinds.values() for row in alike]
        self.seen = bytearray(sum(row.grid.tiles for row in self.rows if row.grid is not None))
        self.mean_s = torch.zeros(len(self.seen), dtype=torch.float64)
        self.sums = torch.zeros(len(self.rows), 6, dtype=torch.float64)
        seen = ctypes.addressof(ctypes.c_char.from_buffer(self.seen))
        self.batches = [Batch(*batch, seen, self.mean_s.data_ptr()) for batch in _batches(self.rows)]
        most = {dtype: max(x.entries for x in self.batches if x.dtype == dtype) for dtype in {x.dtype for x in self.batches}}
        self.scratch = {dtype: (torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)) for dtype, n in most.items()}

    def observe(self) -> Tensor:
        refresh(self.rows)
        sums = self.sums.data_ptr()
        for batch in self.batches:
            X, Y = self._buffers(batch)
            batch.run(PACK, X, sums)
            Q_L, Q_R = batch.bases()
            if Q_L is not None:
                X, Y = torch.bmm(Q_L.mT, X, out=Y), X
            if Q_R is not None:
                X, Y = torch.bmm(X, Q_R, out=Y), X
            batch.run(OBSERVE, X, sums)
            self._follow_factors(batch, X)
        return self.sums

    def move(self, keep: Any, length: Any, gain: Any) -> None:
        numbers, sums = list(zip(keep.tolist(), length.tolist(), strict=True)), self.sums.data_ptr()
        for batch in self.batches:
            X, Y = self._buffers(batch)
            batch.run(SCALE, X, sums)
            Q_L, Q_R = batch.bases()
            if Q_L is not None:
                X, Y = torch.bmm(Q_L, X, out=Y), X
            if Q_R is not None:
                X, Y = torch.bmm(X, Q_R.mT, out=Y), X
            batch.run(UNPACK, X, sums, numbers)
        for row, _, mean, *_ in (part for batch in self.batches for part in batch.parts if part.first == 0):
            if mean is not row.mean:
                row.mean.copy_(mean)
            if row.mean.dtype != row.param.dtype:
                row.param.copy_(row.mean)

    def _buffers(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(x[: batch.entries].view(-1, *batch.tile) for x in self.scratch[batch.dtype])

    def _follow_factors(self, batch: Batch, E: Tensor) -> None:
        at = 0
        for part in batch.parts:
            seen = None
            if self.seen.find(0, part.place, part.place + part.tiles) >= 0:
                seen = torch.frombuffer(self.seen, dtype=torch.uint8)[part.place : part.place + part.tiles].view(-1, 1, 1)
            tiles.follow_factors(part.row, E[at : at + part.tiles], seen, part.first)
            at += part.tiles


def _batches(rows: Sequence[AdaptiveRow]) -> Iterator[tuple[list[Part], int]]:
    """Parts and the number of the first one's row. Rows of equal tiles stand together; a long row is cut."""
    batch: list[Part] = []
    size = number = place = 0
    for index, row in enumerate(rows):
        grid = row.grid
        assert grid is not None
        if row.mean.dtype != row.param.dtype:
            follow_parameter(row.mean, row.param, None)
        grad, mean, tile = row.grad.to(row.mean.dtype).contiguous(), row.mean.contiguous(), grid.height * grid.width
        most = max(MOST // tile, 1)
        for first in range(0, grid.tiles, most):
            part = Part(row, grad, mean, first, min(most, grid.tiles - first), place + first)
            fits = first == 0 and size < LEAST and size + part.tiles * tile <= MOST
            if batch and not (fits and _alike(batch[0].row, row)):
                yield batch, number
                batch = []
            if not batch:
                size, number = 0, index
            batch.append(part)
            size += part.tiles * tile
        place += grid.tiles
    if batch:
        yield batch, number


def refresh(rows: Sequence[AdaptiveRow]) -> None:
    """:func:`arturo.kernels.adaptive.tiles.refresh` of all rows: sides of equal length get their new bases together."""
    due: list[tuple[AdaptiveRow, slice]] = []
    alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}  # factors and bases that are due, by length and dtype
    turns: dict[tuple[int, str], Any] = {}  # where a row's side is in these, then S and the order of its columns
    for row in rows:
        assert row.grid is not None
        some = kronecker.due(row.t, tiles.first_tile(row), row.group["refresh"], row.grid.tiles)
        if some is None:
            continue
        for name, n in kronecker.sides(row.grid):
            together = alike.setdefault((n, row.mean.dtype), [])
            turns[len(due), name] = (n, row.mean.dtype), len(together)
            together.append((row.state[name].flatten(0, 1)[some], row.state["Q_" + name].flatten(0, 1)[some]))
        due.append((row, some))
    turned = {kind: _next_bases(together) for kind, together in alike.items()}
    for index, (row, some) in enumerate(due):
        assert row.grid is not None
        M, r = (row.grid.view(row.state[name]).flatten(0, 1)[some] for name in ("M", "r"))
        new_M, new_r = M, r
        for name, _ in kronecker.sides(row.grid):
            kind, place = turns[index, name]
            S, order = turned[kind][place]
            new_M = torch.bmm(S.mT, new_M) if name == "L" else torch.bmm(new_M, S)
            dim, order = (-2, order.unsqueeze(-1)) if name == "L" else (-1, order.unsqueeze(-2))
            new_r = new_r.gather(dim, order.expand_as(r))
        M.copy_(new_M)
        r.copy_(new_r)


def _next_bases(together: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Turn these factors and bases, in place. Returns S and the order of the columns of each."""
    counts = [len(factor) for factor, _ in together]
    factors, bases = (torch.cat(some) for some in zip(*together, strict=True))
    new, S, order = kronecker.next_basis(factors, bases, _ridged, _orthogonal)
    factors = torch.bmm(torch.bmm(S.mT, factors), S)
    for (factor, Q), own_factor, own_Q in zip(together, factors.split(counts), new.split(counts), strict=True):
        factor.copy_(own_factor)
        Q.copy_(own_Q)
    return list(zip(S.split(counts), order.split(counts), strict=True))


def _ridged(factors: Tensor) -> tuple[Tensor, Tensor]:
    to, order = torch.empty_like(factors), torch.empty(factors.shape[:-1], dtype=torch.int64)
    addresses = [ctypes.c_void_p(x.data_ptr()) for x in (factors, to, order)]
    native.library().arturo_ridged(*_shape(factors), ctypes.c_double(kronecker.RIDGE), *addresses)
    return to, order


def _orthogonal(x: Tensor) -> Tensor:
    native.library().arturo_orthogonal(*_shape(x), ctypes.c_void_p(x.data_ptr()))
    return x


def _shape(x: Tensor) -> tuple[Any, ...]:
    """Whether they are wide, how many matrices, their side, and how many threads."""
    wide, threads = ctypes.c_int32(x.dtype == torch.float64), ctypes.c_int32(torch.get_num_threads())
    return wide, ctypes.c_int64(len(x)), ctypes.c_int32(x.shape[-1]), threads


def _alike(a: AdaptiveRow, b: AdaptiveRow) -> bool:
    return a.grid is not None and b.grid is not None and a.grid[2:] == b.grid[2:] and a.mean.dtype == b.mean.dtype
