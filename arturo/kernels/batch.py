"""What a kernel works on: one record per parameter, and the constants of its group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar
from arturo.surrogates import Surrogate


class Constants(NamedTuple):
    """The numbers of one parameter group in one step, in the paper's letters."""

    q: Scalar  # drift of the filter
    r: Scalar  # noise of the gradient
    rho: Scalar
    rho_lam: Scalar
    nu: Scalar
    floor: Scalar | None
    a_0: Scalar
    consistent: bool  # b_0 = g - a_0 m, not g
    averaging: tuple[float, float]  # averaging constants of surrogates without a filter
    factor: Scalar  # on the gradient: the sign of maximize over the unit of the loss
    decay: Scalar  # factor on the mean before anything else
    alive: Tensor | None = None  # device-side flag: False leaves every bit as it is (None: True)


class Row(NamedTuple):
    """One parameter that takes part in a step, or a part of it: its tensors, and what else a pass must know of it."""

    param: Tensor
    grad: Tensor
    mean: Tensor  # the parameter itself unless that is half precision
    prec: Tensor
    a: Tensor
    b: Tensor
    memory: tuple[Tensor, ...]  # what the surrogate keeps besides a and b: the filter its P
    surrogate: Surrogate
    step: Tensor  # 0-d: steps taken so far
    eta: Tensor  # 0-d: multiplier of the last of them
    first: Any  # bool, or 0-d tensor: nothing was observed yet
    seed: Any = 0  # int, or 0-d tensor: of the rounding bits, see arturo.core.rounding
    starts: tuple[int, ...] = (0,)  # where the equally long runs of its entries begin in the whole parameter
    counted: bool = True  # whether this process counts it in sums, and not another one that has the same
    diagonal: Tensor | None = None  # of the Hessian, for surrogates that ask for one

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything with an entry for each weight."""
        own = self.param, self.grad, self.mean, self.prec, self.a, self.b, *self.memory
        return own if self.diagonal is None else (*own, self.diagonal)

    @property
    def offset(self) -> int:
        """Index of the first entry in the whole parameter."""
        return self.starts[0]

    @property
    def rounded(self) -> bool:
        """Whether the state is in bfloat16."""
        return self.prec.dtype == torch.bfloat16

    def map(self, view: Callable[[Tensor], Tensor], starts: tuple[int, ...] | None = None) -> Row:
        """The row with every tensor seen through ``view``; a mean that is the parameter stays the same object."""
        param = view(self.param)
        return self._replace(
            param=param,
            grad=view(self.grad),
            mean=param if self.mean is self.param else view(self.mean),
            prec=view(self.prec),
            a=view(self.a),
            b=view(self.b),
            memory=tuple(view(x) for x in self.memory),
            diagonal=None if self.diagonal is None else view(self.diagonal),
            starts=self.starts if starts is None else starts,
        )

    def as_vector(self) -> Row:
        """What kernels take: complex numbers as pairs of reals (their state already is), scalars as vectors of one.

        A 0-d tensor would take on the dual's float64, and torch.compile loses what is written to a 0-d float64 input.
        """
        return self.map(_as_vector)

    def runs(self) -> Iterator[Row]:
        """The runs of entries that are neighbours in the whole parameter: a shard of rows is one, one of columns has many."""
        if len(self.starts) > 1 and self._contiguous():
            length = self.param.numel() // len(self.starts)
            for i, start in enumerate(self.starts):
                yield self.map(_slice(i * length, length), (start,))
        else:
            yield self

    def pieces(self, size: int) -> Iterator[Row]:
        """Flat pieces of at most ``size`` entries, so that temporaries stay small; whole where memory is not contiguous."""
        for run in self.runs():
            n = run.param.numel()
            if n <= size or not run._contiguous():
                yield run
            else:
                for begin in range(0, n, size):
                    yield run.map(_slice(begin, size), (run.offset + begin,))

    def _contiguous(self) -> bool:
        return all(x.is_contiguous() for x in self.tensors)


def runs(rows: Sequence[Row]) -> list[tuple[Row, tuple[Tensor, ...]]]:
    """All rows, run by run, each with its tensors."""
    return [(run, run.tensors) for row in rows for run in (row.runs() if len(row.starts) > 1 else (row,))]


def _slice(begin: int, length: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x.reshape(-1)[begin : begin + length]


def _as_vector(x: Tensor) -> Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x if x.dim() else x.unsqueeze(0)


def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, save on the one backend that lacks it."""
    return torch.float32 if device.type == "mps" else torch.float64


def largest_gradient(dtype: torch.dtype, factor: Scalar = 1.0) -> Scalar:
    """Entries beyond this are missing observations: their squares, or those times ``factor``, would leave ``dtype``'s range."""
    limit = 1e140 if dtype == torch.float64 else 1e18
    if isinstance(factor, Tensor):
        return limit / factor.abs().clamp(min=1)
    return limit / max(abs(factor), 1.0)
