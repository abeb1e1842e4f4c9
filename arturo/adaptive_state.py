"""One parameter's state in :class:`arturo.AdaArturo`: its shape as a matrix, its tiles, its buffers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arturo import kronecker, sharding
from arturo.kronecker import Tiling
from arturo.state import FACTORS, HALF, apart, buffer_dtype

VECTOR_SIZE = 0.1  # of a vector (bias, gain) that has not travelled further than this from its start
MOST_SIZE = 1.0  # of any tensor, however large it is: steps in proportion to it would take it away exponentially
MATRIX_SIZE = 1.0  # times 1 / sqrt(columns): of a matrix that is smaller, such as an output layer that starts near 0
PLAIN = ("step", "tile")  # state that is the same on every process


def effective_shape(p: Tensor) -> tuple[int, ...]:
    """The shape that decides what is a matrix: beyond two dimensions those of length 1 do not count.

    A single column, as the gains of a weight norm, is a vector. A single row is what a layer with one output has.

    Example:
        >>> [effective_shape(torch.empty(shape)) for shape in ((1, 197, 768), (64, 1, 1), (64, 1), (1, 5))]
        [(197, 768), (64,), (64,), (1, 5)]
    """
    return _effective_shape(tuple(p.shape))


@functools.lru_cache(maxsize=4096)
def _effective_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1) if len(shape) > 2 or (shape[1:] == (1,) and shape[0] > 1) else shape


def least_size(p: Tensor) -> float:
    """The least size of a tensor: one that starts at 0 would otherwise never leave it, one near 0 only slowly.

    For a matrix it is the size at which inputs of size 1 give outputs of size 1.

    Example:
        >>> least_size(torch.zeros(64)), least_size(torch.zeros(8, 64, 5, 5))
        (0.1, 0.025)
    """
    return _least_size(tuple(p.shape))


@functools.lru_cache(maxsize=4096)
def _least_size(shape: tuple[int, ...]) -> float:
    shape = _effective_shape(shape)
    return VECTOR_SIZE if len(shape) < 2 else MATRIX_SIZE / math.sqrt(max(math.prod(shape[1:]), 1))


def grid_of(group: Mapping[str, Any], p: Tensor) -> Tiling | None:
    """How a parameter is cut into tiles; None: not at all, its covariance is diagonal.

    For a DTensor this is the grid of this process's shard, whose rows are separate tiles. A parameter that is not sharded
    into equal numbers of rows stays on the diagonal, as does one that would not turn in a single process.
    """
    grid, block = _whole_grid(group, p), group["block"]
    if grid is None or not sharding.is_sharded(p):
        return grid
    parts = sharding.row_parts(p)
    return None if parts is None else kronecker.tiling(_matrix_shape(p), block, parts)


def _whole_grid(group: Mapping[str, Any], p: Tensor) -> Tiling | None:
    return None if group["covariance"] == "diagonal" else kronecker.tiling(_matrix_shape(p), group["block"])


def _matrix_shape(p: Tensor) -> tuple[int, ...]:
    shape = effective_shape(p)
    return (*shape, 2) if p.is_complex() and len(shape) >= 2 else shape


def initial_state(group: Mapping[str, Any], p: Tensor) -> dict[str, Tensor]:
    """Zeros: the first gain is 1, and the first gradient sets everything. ``M``, ``r`` and factors are in the tiles' bases.

    ``tile`` is the height and width of a tile, (0, 0) for a matrix that sharding keeps on the diagonal: a checkpoint may come
    from another number of processes. State of a DTensor is made of DTensors, except what is the same on every process.
    """
    here = sharding.to_local(p.detach())
    real = torch.view_as_real(here) if here.is_complex() else here
    grid, dtype = grid_of(group, p), group["state_dtype"] or buffer_dtype(p)
    state = {"step": torch.zeros((), dtype=torch.float32, device=p.device if group["capturable"] else "cpu")}
    like = real if grid is None else real.contiguous()
    for place, name in enumerate(("M", "r"), 1):
        state[name] = apart(like, dtype, place).zero_()
    if _whole_grid(group, p) is not None:
        state["tile"] = torch.tensor((0, 0) if grid is None else (grid.height, grid.width), device="cpu")
    for name, n in kronecker.sides(grid):
        assert grid is not None
        state[name] = torch.zeros(grid.rows, grid.columns, n, n, dtype=dtype, device=p.device)
        state["Q_" + name] = torch.eye(n, dtype=dtype, device=p.device).expand(grid.rows, grid.columns, n, n).clone()
    if len(effective_shape(p)) < 2:
        state["start"] = real.to(buffer_dtype(p), copy=True)
    if real.dtype in HALF:
        state["mean"] = real.to(torch.float32)
    if not sharding.is_sharded(p):
        return state
    lay = {name: sharding.by_rows if name in FACTORS else sharding.like for name in state}
    return {name: x if name in PLAIN else lay[name](x, p) for name, x in state.items()}
