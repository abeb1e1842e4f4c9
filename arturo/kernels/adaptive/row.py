"""What AdaArturo's kernels work on: one parameter that takes part in a step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.core import rounding
from arturo.kernels.batch import largest_gradient
from arturo.kernels.native import PLAIN
from arturo.kronecker import Tiling
from arturo.surrogates import learned

ROUNDINGS = ("M", "r", "L", "R", "Q_L", "Q_R")  # buffers in bfloat16, by the number of their rounding bits
LIKE = ("M", "r", "start")  # buffers with the parameter's shape
SLICED = {*ROUNDINGS, *LIKE}
BAND = {True: 1 << 18, False: 1 << 22}  # entries of a band, on the CPU and on devices, which want larger operations


class Layout:
    """What stays the same from step to step, as long as a parameter and its state lie where they did.

    Attributes:
        counter: address of the number of steps, a float32 of the host; 0: it is something else.
        least: size of the whole parameter.
        native: how C++ reaches the parameter and its state: a line of ``native.FORMATS``, or 0 for tiles; -1: it does not; None
            until a kernel has looked.
        record: what C++ gets of it for a pass, line: and for the numbers of a step; None until then.
        unusual: whether it is complex or a single number.
        size: what the last move left of its size, for the C++ passes (struct Size of cpp/adaptive.h).
    """

    __slots__ = ("_kept", "_key", "_plain", "counter", "grid", "least", "line", "native", "record", "size", "unusual")

    def __init__(
        self, group: Mapping[str, Any], p: Tensor, state: Mapping[str, Tensor], number: int, grid: Tiling | None, least: float
    ) -> None:
        self.grid, self.least = grid, least
        self.native: int | None = None
        self.record: bytes | None = None
        self.line: bytes | None = None
        self.size = array("d", (-1.0, 0.0))
        self.unusual = p.is_complex() or p.dim() == 0
        self._plain = all(type(x) in PLAIN for x in (p, *state.values()))
        self._key = _key(group, p, state, number, self._plain)
        self._kept = p, *state.values()  # as long as these exist, nothing else is where they are
        step = state["step"]
        self.counter = step.data_ptr() if step.dtype == torch.float32 and type(step) in PLAIN and step.is_cpu else 0

    def fits(self, group: Mapping[str, Any], p: Tensor, state: Mapping[str, Tensor], number: int) -> bool:
        """Whether everything lies where it did."""
        return self._key == _key(group, p, state, number, self._plain)


def _key(group: Mapping[str, Any], p: Tensor, state: Mapping[str, Tensor], number: int, plain: bool) -> list[Any]:
    tensors = p, *state.values()
    try:
        places = [*map(Tensor.data_ptr if plain else _place, tensors)]
    except TypeError:  # the user keeps something else there
        places = [*map(_place, tensors)]
    return [number, p.dtype, p.shape, p.stride(), group["covariance"], group["block"], *places]


def _place(x: Any) -> int:
    """Of a DTensor's own part; fake tensors are nowhere."""
    local = getattr(x, "_local_tensor", x)
    return local.data_ptr() if type(local) in PLAIN else id(x)


class AdaptiveRow(NamedTuple):
    """This process's part of one parameter, complex numbers as pairs of reals, and the numbers of its step."""

    param: Tensor
    grad: Tensor
    mean: Tensor  # the parameter itself unless that is half precision
    state: Mapping[str, Tensor]
    group: Mapping[str, Any]
    grid: Tiling | None  # None: diagonal
    number: int  # its place among all parameters of the optimizer
    first: int  # index of its first entry in the whole parameter: where a shard begins
    counted: bool  # whether this process counts it in sums, and not another one that has the same
    t: Any  # the number of this step, counted from 1: an int, or a 0-d tensor under capturable
    gain: Any  # of the filter
    layout: Layout
    alive: Tensor | None  # device-side flag: False (lr = 0 in a tensor) leaves every bit as it is (None: True)

    @property
    def share(self) -> Any:
        """Which part of a squared innovation is noise."""
        return learned.innovation_share(self.gain, self.t)

    @property
    def weight(self) -> Any:
        """Of the newest innovation in the running mean r."""
        return learned.noise_weight(self.group["betas"][1], self.t)

    @property
    def limit(self) -> float:
        """Entries beyond it are missing observations. Turned, an entry may be as large as the norm of its tile."""
        entries = 1 if self.grid is None else self.grid.height * self.grid.width
        return float(largest_gradient(self.mean.dtype, math.sqrt(entries)))

    @property
    def sure(self) -> float:
        """The least sqrt(r), in units of |M|."""
        return learned.SURE_APART if self.grid is None else learned.SURE

    @property
    def start(self) -> Tensor | None:
        """Where a vector began; a matrix has none."""
        return self.state.get("start")

    @property
    def seed(self) -> Any:
        """Of the bits with which state in bfloat16 is rounded in this step."""
        return rounding.seed(self.t.to(torch.int64) if isinstance(self.t, Tensor) else self.t, self.number)

    def gradient(self) -> Tensor:
        """In the mean's precision, of what is minimized."""
        g = self.grad.to(self.mean.dtype)
        return -g if self.group["maximize"] else g

    @property
    def rounded(self) -> bool:
        """Whether state is in bfloat16."""
        return self.state["M"].dtype == torch.bfloat16

    def bands(self) -> list[AdaptiveRow]:
        """The same as several rows, so that temporary tensors do not grow with it: whole rows of tiles or of entries."""
        grid, size = self.grid, self.mean.numel()
        if len(self.mean.shape) > 1 and len(self.mean) == 1:  # rows are counted without it
            state = {name: x[0] if name in LIKE else x for name, x in self.state.items()}
            return self._replace(param=self.param[0], grad=self.grad[0], mean=self.mean[0], state=state).bands()
        if not self.mean.dim() or self.state["M"].stride(0) * len(self.mean) != size:  # its rows do not lie one after another
            return [self]
        lines = len(self.mean) if grid is None else grid.rows
        step = max(BAND[self.mean.is_cpu] * lines // max(size, 1), 1)
        if step >= lines or torch.compiler.is_compiling():
            return [self]
        height = 1 if grid is None else grid.height

        def band(begin: int, end: int) -> AdaptiveRow:
            here = slice(begin * height, end * height)
            state = {name: x[here] if name in LIKE else x[begin:end] for name, x in self.state.items() if name in SLICED}
            return self._replace(
                param=self.param[here], grad=self.grad[here], mean=self.mean[here], state=state,
                grid=None if grid is None else grid._replace(rows=end - begin), first=self.first + begin * (size // lines),
            )  # fmt: skip

        return [band(begin, min(begin + step, lines)) for begin in range(0, lines, step)]

    def read(self, name: str) -> Tensor:
        """A buffer of the state in the mean's precision: itself, or a copy if it is :attr:`rounded`."""
        return self.state[name].to(self.mean.dtype)

    def write(self, name: str, value: Tensor, tiles: slice = slice(None)) -> None:
        """Store a new value, rounded stochastically to bfloat16. ``tiles``: those that ``value`` has."""
        stored = self.state[name]
        if self.rounded:
            entry = self._tiles(rounding.entries(stored, self._first(stored)), value)[tiles]
            value = rounding.round_randomly(value, rounding.draw(self.seed, entry, ROUNDINGS.index(name)))
        self._tiles(stored, value)[tiles].copy_(value)

    def _tiles(self, x: Tensor, like: Tensor) -> Tensor:
        """A buffer tile by tile where ``like`` is."""
        return x.view(-1, *like.shape[-2:]) if self.grid is not None and like.dim() == 3 else x.view(like.shape)

    def _first(self, stored: Tensor) -> int:
        """Index of the first entry in the whole parameter's buffer."""
        if self.grid is None or not self.first:
            return self.first
        return self.first // (self.grid.height * self.grid.width) * (stored.numel() // self.grid.tiles)

    def noise_scale(self) -> Tensor:
        """``s``, with the order of the state. Turned, directions that no gradient has must not count as noiseless."""
        s = learned.noise_scale(self.read("r"), self.group["eps"])
        if self.grid is not None:
            tiles = self.grid.view(s)
            tiles.add_(tiles.mean((-2, -1), keepdim=True), alpha=learned.FLOOR)
        return s.clamp_(min=learned.least_scale(s.dtype))
