"""One step of :class:`arturo.AdaArturo`: observe every parameter, one multiplier for all, move every parameter.

There is no host read in it: sums stay on the device, so that accelerators never wait. What depends on the number of a step
(gains, whose basis is refreshed) is known on the host, or under ``capturable`` computed on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo import kronecker, sharding
from arturo.kernels.batch import largest_gradient, sum_dtype
from arturo.kernels.eager import follow_parameter
from arturo.kronecker import Tiling
from arturo.state import FACTORS, HALF, buffer_dtype
from arturo.surrogates import learned

PER_LR = 20.0  # tau / lr: weights with a root mean square of 0.05 move by about lr
VECTOR_SIZE = 0.1  # of a vector (bias, gain) that has not travelled further than this from its start
MATRIX_SIZE = 1.0  # times 1 / sqrt(columns): of a matrix that is smaller, such as an output layer that starts near 0
BASIS_BETA = 0.97  # averaging constant of the Kronecker factors
FLOOR = 1e-3  # of a tile's mean s: turned, most directions of a first gradient hold rounding errors and nothing else
SHARE_EXPONENT = 0.25  # gamma of arturo.surrogates.learned.reach
PLAIN = ("step", "tile")  # state that is the same on every process


@dataclass(frozen=True)
class Row:
    """One parameter that takes part: this process's part of it, complex numbers as pairs of reals, and its group's numbers."""

    param: Tensor
    grad: Tensor
    mean: Tensor  # the parameter itself unless that is half precision
    state: Mapping[str, Tensor]
    group: Mapping[str, Any]
    grid: Tiling | None  # None: diagonal
    number: int  # its place among all parameters of the optimizer
    counted: bool  # whether this process counts it in sums, and not another one that has the same
    t: Any  # the number of this step, counted from 1: an int, or a 0-d tensor under capturable
    alive: Tensor | None  # device-side flag: False (lr = 0 in a tensor) leaves every bit as it is (None: True)

    @property
    def gain(self) -> Any:
        return learned.filter_gain(self.group["betas"][0], self.t)

    def noise_scale(self) -> Tensor:
        """``s``, with the order of the state. Turned, directions that no gradient has must not count as noiseless."""
        s = learned.noise_scale(self.state["r"], self.state["M"], self.group["eps"])
        if self.grid is not None:
            tiles = s.view(self.grid.rows, self.grid.columns, self.grid.height, self.grid.width)
            tiles.add_(tiles.mean((-2, -1), keepdim=True), alpha=FLOOR)
        return s.clamp_(min=torch.finfo(s.dtype).tiny)  # eps = 0 where no gradient ever was

    def tiles(self, name: str) -> Tensor:
        """A buffer of the state as tiles: it has the shape of the parameter and the order of the tiles."""
        assert self.grid is not None
        return self.state[name].view(self.grid.rows, self.grid.columns, self.grid.height, self.grid.width)


def effective_shape(p: Tensor) -> tuple[int, ...]:
    """The shape that decides what is a matrix: beyond two dimensions those of length 1 do not count.

    Example:
        >>> [effective_shape(torch.empty(shape)) for shape in ((1, 197, 768), (64, 1, 1), (1, 5))]
        [(197, 768), (64,), (1, 5)]
    """
    return tuple(n for n in p.shape if n != 1) if p.dim() > 2 else tuple(p.shape)


def grid_of(group: Mapping[str, Any], p: Tensor) -> Tiling | None:
    """How a parameter is cut into tiles; None: not at all, its covariance is diagonal.

    Of a DTensor this is the grid of this process's shard, whose rows are tiles of their own. A parameter that is not spread
    in equal numbers of rows stays on the diagonal, as does one that would not turn in a single process.
    """
    grid, block = _whole_grid(group, p), group["block"]
    if grid is None or not sharding.is_sharded(p):
        return grid
    parts = sharding.row_parts(p)
    shape = _matrix_shape(p)
    return None if parts is None else kronecker.tiling((shape[0] // parts, *shape[1:]), block)


def _whole_grid(group: Mapping[str, Any], p: Tensor) -> Tiling | None:
    return None if group["covariance"] == "diagonal" else kronecker.tiling(_matrix_shape(p), group["block"])


def _matrix_shape(p: Tensor) -> tuple[int, ...]:
    shape = effective_shape(p)
    return (*shape, 2) if p.is_complex() and len(shape) >= 2 else shape


def initial_state(group: Mapping[str, Any], p: Tensor) -> dict[str, Tensor]:
    """Zeros: the first gain is 1, and the first gradient sets everything. ``M``, ``r`` and factors are in the tiles' bases.

    ``tile`` is the height and width of a tile, (0, 0) for a matrix that sharding keeps on the diagonal: a checkpoint may come
    from another number of processes. State of a DTensor is made of DTensors, save what is the same on every process.
    """
    here = sharding.to_local(p.detach())
    real = torch.view_as_real(here) if here.is_complex() else here
    grid, dtype = grid_of(group, p), buffer_dtype(p)
    layout = torch.preserve_format if grid is None else torch.contiguous_format
    state = {"step": torch.zeros((), dtype=torch.float32, device=p.device if group["capturable"] else "cpu")}
    for name in ("M", "r"):
        state[name] = torch.zeros_like(real, dtype=dtype, memory_format=layout)
    if _whole_grid(group, p) is not None:
        state["tile"] = torch.tensor((0, 0) if grid is None else (grid.height, grid.width))
    for name, n in sides(grid):
        assert grid is not None
        state[name] = torch.zeros(grid.rows, grid.columns, n, n, dtype=dtype, device=p.device)
        state["Q_" + name] = torch.eye(n, dtype=dtype, device=p.device).expand(grid.rows, grid.columns, n, n).clone()
    if len(effective_shape(p)) < 2:
        state["start"] = real.to(dtype, copy=True)
    if real.dtype in HALF:
        state["mean"] = real.to(torch.float32)
    if not sharding.is_sharded(p):
        return state
    lay = {name: sharding.by_rows if name in FACTORS else sharding.like for name in state}
    return {name: x if name in PLAIN else lay[name](x, p) for name, x in state.items()}


def sides(grid: Tiling | None) -> list[tuple[str, int]]:
    """The sides that turn, by the name of their factor, and how long they are."""
    if grid is None:
        return []
    return [(name, n) for name, turns, n in (("L", grid.left, grid.height), ("R", grid.right, grid.width)) if turns]


def row_of(
    group: Mapping[str, Any], p: Tensor, state: Mapping[str, Tensor], number: int, shards: sharding.Shards | None
) -> Row:
    """One parameter with a gradient as the step sees it: local, real, at least one-dimensional."""
    grad, counted, grid, t, alive = p.grad, True, grid_of(group, p), next_step(group, state), None
    assert grad is not None
    if shards is not None:
        counted = shards.piece(p, rounded=False).counted
        p, grad, state = shards.local(p, grad, state)
    param, grad = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in (p, grad))
    if param.dim() == 0:  # 0-d float32 would take on the float64 of the sums
        param, grad = param.unsqueeze(0), grad.unsqueeze(0)
        state = {name: x.unsqueeze(0) if name in ("M", "r", "start", "mean") else x for name, x in state.items()}
    if group["capturable"] and isinstance(group["lr"], Tensor):
        alive = group["lr"].reshape(()).to(param.device) > 0
    if "mean" in state:
        follow_parameter(state["mean"], param, alive)
    return Row(param, grad, state.get("mean", param), state, group, grid, number, counted, t, alive)


def next_step(group: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """The number of the next step, from 1; under capturable on the device and in float64, as gains are differences from 1."""
    step = state["step"]
    return step.to(sum_dtype(step.device)) + 1 if group["capturable"] else int(step) + 1


Members = Sequence[tuple[Tensor, Mapping[str, Any]]]  # all parameters of the optimizer, in order, each with its group


def take_step(rows: Sequence[Row], info: Tensor, shards: sharding.Shards | None, members: Members) -> None:
    """Step all rows and write what happened to ``info``."""
    # Filter and noise, in the basis of each tile:  M += K (G - M);  r += w (E^2 / (1 + P-) - r)
    missing = [observe(row) for row in rows]
    # Per tensor sigma, its size;  over all tensors B = sum sigma s, A = sum sigma M^2 / s, N = sum sigma s K / (2 - K)
    at = region(rows, missing, info, shards, members)
    # One multiplier for all tensors:  k = phi^gamma sqrt(B / max(A, N)),  phi = 1 - N / A
    k, phi, part = learned.reach(at.B, at.A, at.N, SHARE_EXPONENT)
    seen = at.skipped < at.entries  # where everything is missing nothing moves
    k = torch.where(seen, k, 0.0)
    # mu <- keep mu - tau sigma k Q_L (M / s) Q_R^T
    spent = torch.where(k > 0, k * k * at.A / at.B, 0.0)
    for row, sigma in zip(rows, at.sigma, strict=True):
        move(row, sigma, k, spent, phi, seen)
    bound = 0.5 * PER_LR * at.lr * part * at.B
    kl = 0.5 * PER_LR / at.lr * k * k * at.weighted_A
    eta = torch.where(k > 0, 1 / k, 0.0)
    active = (k > 0) & (at.A >= at.N)
    info.copy_(torch.stack([x.to(info.dtype) for x in (eta, kl, bound, at.entries > 0, active, at.skipped)]))


def observe(row: Row) -> Tensor:
    """Filter, noise and factors of one parameter, in its tiles' bases. Returns the number of missing entries.

    An entry that is not finite, or too large to square, is a missing observation: no innovation, no news of the noise. A tile
    with a missing entry is missing as a whole, since turning spreads every entry over all of it.
    """
    state, group, t, gain = row.state, row.group, row.t, row.gain
    g = row.grad.to(state["M"].dtype)
    g = -g if group["maximize"] else g
    limit = largest_gradient(g.dtype)
    if row.grid is None:
        M, r = state["M"], state["r"]
        seen = g.abs() <= limit  # False for NaN too
        missing = seen.numel() - seen.sum()
        seen = seen if row.alive is None else seen & row.alive
        E = torch.where(seen, g - M, 0.0)
    else:
        M, r = row.tiles("M"), row.tiles("r")
        tiles = kronecker.to_tiles(g, row.grid)
        seen = (tiles.abs() <= limit).all(-1, keepdim=True).all(-2, keepdim=True)
        missing = (seen.numel() - seen.sum()) * row.grid.height * row.grid.width
        tiles = torch.where(seen, tiles, 0.0)
        refresh(row, tiles)
        E = torch.where(seen, kronecker.turn(tiles, state.get("Q_L"), state.get("Q_R")) - M, 0.0)
        weight = learned.noise_weight(BASIS_BETA, t) * seen.to(E.dtype)
        for name, _ in sides(row.grid):
            state[name].lerp_(E @ E.mT if name == "L" else E.mT @ E, weight)
    variance = torch.where(seen, E.square().mul_(learned.innovation_share(gain, t)), r)
    weight = learned.noise_weight(group["betas"][1], t)
    r.lerp_(variance, weight.to(r.dtype) if isinstance(weight, Tensor) else weight)
    M.add_(E.mul_(gain))
    return missing


def refresh(row: Row, tiles: Tensor) -> None:
    """Bring the bases up to date where they are due, and what is kept in them along; the first gradient makes the first."""
    state = row.state
    if row.t == 1:
        for name, _ in sides(row.grid):
            state["Q_" + name].copy_(kronecker.first_basis(tiles @ tiles.mT if name == "L" else tiles.mT @ tiles))
    elif kronecker.due(row.t, row.number, row.group["refresh"]):
        M, r = row.tiles("M"), row.tiles("r")
        for name, _ in sides(row.grid):
            new, S, order = kronecker.next_basis(state[name], state["Q_" + name])
            state["Q_" + name].copy_(new)
            state[name].copy_(S.mT @ state[name] @ S)
            M.copy_(S.mT @ M if name == "L" else M @ S)
            dim, order = (-2, order.unsqueeze(-1)) if name == "L" else (-1, order.unsqueeze(-2))
            r.copy_(r.gather(dim, order.expand_as(r)))


class Region(NamedTuple):
    """The sums behind the trust region, over all processes; 0-d tensors."""

    sigma: list[Tensor]  # size of each row's tensor
    B: Tensor
    A: Tensor
    N: Tensor
    weighted_A: Tensor  # A with each tensor's part times lr^2
    lr: Tensor  # the largest
    skipped: Tensor
    entries: Tensor


def region(
    rows: Sequence[Row], missing: Sequence[Tensor], info: Tensor, shards: sharding.Shards | None, members: Members
) -> Region:
    """Sizes and sums: one small table, added up over all processes in one reduction."""
    lines = [_sums(row, skipped, info) for row, skipped in zip(rows, missing, strict=True)]
    places = [row.number for row in rows]
    if shards is not None:  # a line for each parameter, whether or not this process has something of it
        whole = info.new_zeros(len(members), 7)
        for place, row, line in zip(places, rows, lines, strict=True):
            if row.counted:
                whole[place] = line
        table, owners = shards.total(whole), list(members)
    else:
        table, owners, places = torch.stack(lines), [members[i] for i in places], list(range(len(rows)))
    squares, S, A, N, weighted, skipped, entries = table.unbind(1)
    least = torch.stack([_number(least_size(p), info) for p, _ in owners])
    sigma = torch.maximum((squares / entries.clamp(min=1)).sqrt(), least)
    lr = torch.where(entries > 0, torch.stack([_number(group["lr"], info) for _, group in owners]), 0.0).max()
    lr = torch.where(lr > 0, lr, 1.0)  # nothing takes part: of no consequence
    B, A, N, weighted = ((sigma * x).sum() for x in (S, A, N, weighted))
    return Region([sigma[i] for i in places], B, A, N, weighted, lr, skipped.sum(), entries.sum())


def _sums(row: Row, skipped: Tensor, info: Tensor) -> Tensor:
    M, s = row.state["M"], row.noise_scale()
    away = row.mean - row.state["start"] if "start" in row.state else row.mean
    squares, S, A = (x.sum(dtype=info.dtype).to(info.device) for x in (away.square(), s, M / s * M))
    lr, entries = _number(row.group["lr"], info), info.new_full((), row.mean.numel())
    level = learned.noise_level(row.gain)
    line = torch.stack([squares, S, A, S * level, A * lr * lr, skipped.to(info), entries])
    return line if row.alive is None else torch.where(row.alive.to(info.device), line, 0.0)


def _number(x: Any, like: Tensor) -> Tensor:
    """A 0-d tensor on the device; a number is filled in there, since a copy cannot be captured in a graph."""
    return x.to(like).reshape(()) if isinstance(x, Tensor) else like.new_full((), x)


def least_size(p: Tensor) -> float:
    """Below this a tensor has no size of its own: one that starts at 0 would never leave it, one near 0 only slowly.

    For a matrix it is the size at which inputs of size 1 give outputs of size 1.

    Example:
        >>> least_size(torch.zeros(64)), least_size(torch.zeros(8, 64, 5, 5))
        (0.1, 0.025)
    """
    shape = effective_shape(p)
    return VECTOR_SIZE if len(shape) < 2 else MATRIX_SIZE / math.sqrt(max(math.prod(shape[1:]), 1))


def move(row: Row, sigma: Tensor, k: Tensor, spent: Tensor, phi: Tensor, seen: Tensor) -> None:
    """Decay, then the step. A matrix also gives way to the drift's anchor, see :func:`arturo.surrogates.learned.anchor`."""
    M, s, lr = row.state["M"], row.noise_scale(), _number(row.group["lr"], k)
    step = M / s
    if row.grid is not None:
        tiles = step.view(row.grid.rows, row.grid.columns, row.grid.height, row.grid.width)
        step = kronecker.from_tiles(kronecker.turn_back(tiles, row.state.get("Q_L"), row.state.get("Q_R")), row.mean.shape)
    if row.alive is not None:
        step = torch.where(row.alive, step, 0.0)
    keep = torch.where(seen, 1 - lr * row.group["weight_decay"], 1.0)
    if "start" not in row.state:
        keep = keep * learned.anchor(PER_LR * lr, spent, phi, row.gain)
    device = row.mean.device
    row.mean.mul_(keep.to(device)).sub_(step.mul_((PER_LR * lr * sigma * k).to(device)))
    if row.mean.dtype != row.param.dtype:
        row.param.copy_(row.mean)
    row.state["step"].add_(1 if row.alive is None else row.alive.to(row.state["step"]))
