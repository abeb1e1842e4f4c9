r"""The basis in which a matrix's Gaussian is diagonal: eigenvectors of two Kronecker factors, block by block.

A parameter of two or more dimensions is a matrix, rows by everything else (a convolution's kernel is out x in k k), cut into
a grid of equal **tiles**. A tile has the covariance :math:`Q\,\mathrm{diag}(1/p)\,Q^T` with :math:`Q = Q_R \otimes Q_L`,
where :math:`Q_L` and :math:`Q_R` are eigenvectors of the running means of :math:`E E^T` and :math:`E^T E` over its
innovations :math:`E`. Everything the optimizer keeps of a tile lives in that basis, the factors included: a step turns the
gradient into it and the move back out.

The shape decides which sides turn (:func:`tiling`); if none does, the covariance is diagonal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TALL = 8  # rows per column beyond which a matrix is an embedding or an output layer: its rows come and go, and stay unturned
LEAST_PART = 4  # a long side is cut only where some divisor is at least a fourth of the block; it stays unturned otherwise
RIDGE = 1e-5  # of a factor's largest diagonal entry: above the rounding errors of float32
CLEAN = 32  # times the precision: smaller entries of a basis are rounding errors
BASIS_BETA = 0.97  # averaging constant of the factors
COUNTED_EVERY = 5  # steps between two products of a tile's innovation for its factors: the products are a third of the cost
REFRESHED_EARLY = (2, 5)  # steps at which a basis is refreshed besides every so many: the first gradients say little


class Tiling(NamedTuple):
    """A grid of ``rows`` x ``columns`` tiles of ``height`` x ``width``, and which of their sides turn."""

    rows: int
    columns: int
    height: int
    width: int
    left: bool
    right: bool

    @property
    def tiles(self) -> int:
        return self.rows * self.columns

    def view(self, x: Tensor) -> Tensor:
        """A buffer in the order of the tiles as (rows, columns, height, width)."""
        return x.view(self.rows, self.columns, self.height, self.width)


@functools.lru_cache(maxsize=4096)
def tiling(shape: Sequence[int], block: int, parts: int = 1) -> Tiling | None:
    """How a parameter of this ``shape`` is cut; None if nothing of it turns: vectors, embeddings, odd and long sides.

    With ``parts`` it is sharded into so many equal parts of its rows, and this is the grid of each. Where the whole
    parameter's tiles end with a shard's last row, a shard has the same tiles.

    Example:
        >>> tiling((64, 32, 3, 3), 128)  # a convolution: 64 x 288, the long side in three
        Tiling(rows=1, columns=3, height=64, width=96, left=True, right=True)
        >>> tiling((512, 784), 128)  # both sides are long: tiles of half the block
        Tiling(rows=8, columns=14, height=64, width=56, left=True, right=True)
        >>> tiling((512, 784), 128, parts=4)
        Tiling(rows=2, columns=14, height=64, width=56, left=True, right=True)
        >>> tiling((10, 257), 128)  # 257 is prime: that side stays unturned
        Tiling(rows=1, columns=1, height=10, width=257, left=True, right=False)
        >>> tiling((50257, 768), 128), tiling((128,), 128)
        (None, None)
    """
    if len(shape) < 2 or 0 in shape:
        return None
    a, b = shape[0], math.prod(shape[1:])
    if a > TALL * b:
        return None
    most = max(block // 2, 2) if min(a, b) > block else block  # a large matrix: twice the tiles, half the products' cost
    a //= parts
    height, width = (n if n <= most else _divisor(n, most) for n in (a, b))
    left, right = height is not None and height > 1, width is not None and width > 1
    if not (left or right):
        return None
    height, width = height or a, width or b
    return Tiling(a // height, b // width, height, width, left, right)


def _divisor(n: int, most: int) -> int | None:
    """The largest divisor of ``n`` that is at most ``most``; None if it would be much smaller."""
    side = next(d for d in range(most, 0, -1) if n % d == 0)
    return side if side > 1 and side * LEAST_PART >= most else None


def sides(grid: Tiling | None) -> list[tuple[str, int]]:
    """The sides that turn, by the name of their factor, and how long they are."""
    if grid is None:
        return []
    return [(name, n) for name, turns, n in (("L", grid.left, grid.height), ("R", grid.right, grid.width)) if turns]


def to_tiles(x: Tensor, grid: Tiling) -> Tensor:
    """A parameter's entries as (rows, columns, height, width); a view where its layout allows."""
    return x.reshape(grid.rows, grid.height, grid.columns, grid.width).transpose(1, 2)


def from_tiles(tiles: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of :func:`to_tiles`.

    Example:
        >>> x = torch.arange(24.0).view(4, 6)
        >>> grid = Tiling(2, 2, 2, 3, True, True)
        >>> torch.equal(from_tiles(to_tiles(x, grid), (4, 6)), x), to_tiles(x, grid)[0, 1]
        (True, tensor([[ 3.,  4.,  5.],
                [ 9., 10., 11.]]))
    """
    return tiles.transpose(1, 2).reshape(shape)


def turn(x: Tensor, Q_L: Tensor | None, Q_R: Tensor | None) -> Tensor:
    r"""Into the basis: :math:`Q_L^T X Q_R`."""
    x = x if Q_L is None else Q_L.mT @ x
    return x if Q_R is None else x @ Q_R


def turn_back(x: Tensor, Q_L: Tensor | None, Q_R: Tensor | None) -> Tensor:
    r"""Out of the basis: :math:`Q_L X Q_R^T`."""
    x = x if Q_L is None else Q_L @ x
    return x if Q_R is None else x @ Q_R.mT


def first_basis(factor: Tensor) -> Tensor:
    """Eigenvectors of a first factor, largest eigenvalue first: (tiles, n, n) to the same.

    In float64, where LAPACK converges on the low-rank matrices that first gradients give. If it fails nevertheless, one
    orthogonal iteration from the unit matrix is good enough to start. Such matrices leave a null space, in which rounding
    would choose the basis; the eigenvectors of a fixed diagonal matrix within it are the choice instead.
    """
    n = factor.shape[-1]
    scaled = _scaled(factor).to(torch.float64)
    try:
        values, vectors = torch.linalg.eigh(scaled)
        known: Tensor = vectors * (values > n * torch.finfo(factor.dtype).eps).unsqueeze(-2)
        null = torch.eye(n, dtype=scaled.dtype, device=scaled.device) - known @ known.mT
        fixed = torch.linspace(1 / n, 1, n, dtype=scaled.dtype, device=scaled.device).diag()
        Q: Tensor = torch.linalg.eigh(known * values.unsqueeze(-2) @ known.mT - null @ fixed @ null)[1].flip(-1)
    except RuntimeError:  # torch.linalg.LinAlgError is one, and is not typed
        Q = torch.linalg.qr(scaled)[0]
    return cleaned(Q.to(factor.dtype))


def cleaned(Q: Tensor) -> Tensor:
    """A basis without rounding errors: a row that no gradient has reached is a direction by itself, exactly.

    Example:
        >>> cleaned(torch.tensor([[1.0, 1e-7], [-1e-7, 1.0]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    return torch.where(Q.abs() < CLEAN * torch.finfo(Q.dtype).eps, 0.0, Q)


def arranged(factor: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """The order of rows, and that of columns by their variance, largest first, in which a basis is refreshed.

    Rows that no gradient has reached come last, and the columns that are these rows' own: padding, words that have not
    occurred, pixels that are always black. The reflections of the others then leave them alone, so that each stays a direction
    by itself, exactly, and its part of every step is 0.
    """
    variances, there = factor.diagonal(dim1=-2, dim2=-1), Q != 0
    reached = (there & (variances > 0).unsqueeze(-2)).any(-1)
    own = ~(there & reached.unsqueeze(-1)).any(-2)
    by_variance = variances.argsort(dim=-1, descending=True, stable=True)
    last = own.gather(-1, by_variance).to(torch.uint8).argsort(dim=-1, stable=True)
    return (~reached).to(torch.uint8).argsort(dim=-1, stable=True), by_variance.gather(-1, last)


def ridged(factor: Tensor, order: Tensor) -> Tensor:
    """A factor of largest variance 1 with the ridge, its columns in this order."""
    matrix = _scaled(factor) + RIDGE * torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return matrix.gather(-1, order.unsqueeze(-2).expand_as(factor))


def orthogonal(x: Tensor, rows: Tensor) -> Tensor:
    """Q of x = Q R, by reflections of the rows in this order."""
    order = rows.unsqueeze(-1).expand_as(x)
    Q: Tensor = torch.linalg.qr(x.gather(-2, order))[0]
    return torch.empty_like(Q).scatter_(-2, order, Q)


def next_basis(factor: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""One orthogonal iteration, :math:`Q \leftarrow \mathrm{qr}((L + \delta I) Q)`, columns sorted by their variance first.

    ``factor`` is :math:`Q^T L Q`. The ridge :math:`\delta`, a small part of the largest variance, leaves directions that no
    gradient has as they are; without it rounding would turn them. Returns the new basis, the rotation :math:`S = Q^T Q_{new}`
    that takes what is kept from the old one to the new one, and the order of the columns before the iteration.
    """
    rows, order = arranged(factor, Q)
    new = orthogonal(Q @ ridged(factor, order), rows)
    return new, Q.mT @ new, order


def _scaled(factor: Tensor) -> Tensor:
    """With a largest diagonal entry of 1: a gradient may be anything from 1e-15 to 1e15, its square may not."""
    largest = factor.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True).unsqueeze(-1)
    return torch.where(largest > 0, factor / largest, factor)


def due(t: int, place: int, every: int, tiles: int) -> slice | None:
    """Which of a parameter's ``tiles`` refresh their bases at step ``t``; None: none does.

    Tiles take turns, so that no step pays for all: tile i is due where t + place + i is a multiple of ``every``.

    Example:
        >>> [t for t in range(1, 31) if due(t, 0, 10, 1)], [t for t in range(1, 31) if due(t, 3, 10, 1)]
        ([2, 5, 10, 20, 30], [2, 5, 17, 27])
        >>> [list(range(12))[due(t, 0, 10, 12)] for t in (5, 20, 19)]
        [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0, 10], [1, 11]]
    """
    if t in REFRESHED_EARLY:
        return slice(None)
    return None if t < every else _turns(t + place, every, tiles)


def counted(t: int, place: int, every: int, tiles: int) -> tuple[slice | None, int]:
    """Whose innovations enter the factors at step ``t``, and how many steps each represents; a step ahead of :func:`due`.

    Example:
        >>> counted(20, 0, 1, 4), counted(3, 0, 5, 4), counted(19, 0, 5, 4), counted(20, 0, 5, 4), counted(7, 2, 5, 1)
        ((slice(0, None, 1), 1), (slice(None, None, None), 1), (slice(0, None, 5), 5), (None, 5), (slice(0, None, 5), 2))
    """
    early = max(REFRESHED_EARLY)
    if t <= early:
        return slice(None), 1
    return _turns(t + place + 1, every, tiles), min(every, t - early)


def _turns(t: int, every: int, tiles: int) -> slice | None:
    first = -t % every
    return slice(first, None, every) if first < tiles else None
