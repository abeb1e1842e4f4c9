"""The passes over matrices that are turned into the bases of their tiles, in plain tensor operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arturo import kronecker
from arturo.kernels.adaptive import Moves, eager
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned


class Tiles:
    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        self.rows = rows

    def observe(self) -> Tensor:
        return eager.observe_all(observe, self.rows)

    def move(self, moves: Moves) -> None:
        eager.move_all(move, self.rows, moves)


def observe(row: AdaptiveRow) -> Tensor:
    """A tile with a missing entry is missing as a whole, since turning spreads every entry over all of it."""
    grid = row.grid
    assert grid is not None
    if row.mean.dtype != row.param.dtype:
        follow_parameter(row.mean, row.param, row.alive)
    tiles = kronecker.to_tiles(row.gradient(), grid)
    seen = (tiles.abs() <= row.limit).all(-1, keepdim=True).all(-2, keepdim=True)
    missing = (seen.numel() - seen.sum()) * grid.height * grid.width
    tiles = torch.where(seen, tiles, 0.0)
    if row.t == 1:
        begin(row, tiles)
    else:
        refresh(row)
    M, r = grid.view(row.read("M")), grid.view(row.read("r"))  # in the new bases
    E = torch.where(seen, kronecker.turn(tiles, *bases(row)) - M, 0.0)
    follow_factors(row, E.flatten(0, 1), seen.flatten(0, 1))
    new = torch.lerp(r, E.square().mul_(row.share), row.weight)
    row.write("r", torch.where(seen, torch.maximum(new, learned.least_noise(M + row.gain * E, row.sure)), r))
    s = grid.view(row.noise_scale())
    surprise = row.share * (E / s * E).sum((-2, -1), keepdim=True) / s.sum((-2, -1), keepdim=True)
    before = s, M / s * M, M / s * E, E / s * E
    row.write("M", M + E * (row.gain * learned.trust(surprise)))
    M = grid.view(row.read("M"))
    return eager.sums(row, before, missing, M / s * M)


def move(row: AdaptiveRow, own: Moves) -> None:
    grid = row.grid
    assert grid is not None
    tiles = grid.view(row.read("M") / row.noise_scale())
    step = kronecker.from_tiles(kronecker.turn_back(tiles, *bases(row)), row.mean.shape)
    eager.shift(row, step, own)


def first_tile(row: AdaptiveRow) -> int:
    """The place of the row's first tile among the tiles that take turns: shards go on where the one before ends."""
    assert row.grid is not None
    return row.number + row.first // (row.grid.height * row.grid.width)


def follow_factors(row: AdaptiveRow, E: Tensor, seen: Tensor | None, first: int = 0) -> None:
    """E E^T and E^T E of the tiles that are due into the factors' running means. ``E`` begins with tile ``first``.

    ``seen`` tells missing tiles; None: none is missing.
    """
    due, steps = kronecker.counted(row.t, first_tile(row) + first, kronecker.COUNTED_EVERY, len(E))
    if due is None:
        return
    tiles, weight = range(first, first + len(E))[due], learned.factor_weight(kronecker.BASIS_BETA, row.t, steps)
    E = E[due]
    for name, _ in kronecker.sides(row.grid):
        here = slice(tiles.start, tiles.stop, tiles.step)
        factors = row.read(name).flatten(0, 1)[here]
        A, B = (E, E.mT) if name == "L" else (E.mT, E)
        if seen is None:
            factors.baddbmm_(A, B, beta=1 - weight, alpha=weight)
        else:
            factors.lerp_(A @ B, weight * seen[due].to(E.dtype))
        if row.rounded:
            row.write(name, factors, here)


def begin(row: AdaptiveRow, tiles: Tensor) -> None:
    """The first gradient makes the first bases."""
    for name, _ in kronecker.sides(row.grid):
        Q = kronecker.first_basis(tiles @ tiles.mT if name == "L" else tiles.mT @ tiles)
        row.write("Q_" + name, Q)


def refresh(row: AdaptiveRow) -> None:
    """Bring the bases that are due up to date, and what is kept in them along."""
    grid = row.grid
    assert grid is not None
    due = kronecker.due(row.t, first_tile(row), row.group["refresh"], grid.tiles)
    if due is None:
        return
    M, r = (grid.view(row.read(name)).flatten(0, 1)[due] for name in ("M", "r"))
    for name, _ in kronecker.sides(grid):
        factor, Q = (row.read(key).flatten(0, 1)[due] for key in (name, "Q_" + name))
        new, S, order = kronecker.next_basis(factor, Q)
        row.write("Q_" + name, new, due)
        row.write(name, S.mT @ factor @ S, due)
        M = S.mT @ M if name == "L" else M @ S
        dim, order = (-2, order.unsqueeze(-1)) if name == "L" else (-1, order.unsqueeze(-2))
        r = r.gather(dim, order.expand_as(r))
    row.write("M", M, due)
    row.write("r", r, due)


def bases(row: AdaptiveRow) -> list[Tensor | None]:
    """``Q_L`` and ``Q_R`` of all tiles; None for a side that does not turn."""
    return [row.read(name) if name in row.state else None for name in ("Q_L", "Q_R")]
