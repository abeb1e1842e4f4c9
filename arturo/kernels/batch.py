"""What a kernel works on: the tensors of one parameter group, and its constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.trust_region import Scalar


class Constants(NamedTuple):
    """The numbers of one parameter group, in the paper's letters."""

    q: Scalar  # drift of the filter
    r: Scalar  # noise of the gradient
    rho: Scalar
    rho_lam: Scalar
    nu: Scalar
    floor: Scalar | None
    a_0: Scalar
    consistent: bool  # b_0 = g - a_0 m, not g
    factor: Scalar  # on the gradient: the sign of maximize over the unit of the loss
    decay: Scalar  # factor on the mean before anything else


class Batch(NamedTuple):
    """Lists of equal length; ``mean`` is the parameter itself unless that is half precision.

    State in bfloat16 has ``P_slope`` and ``P_rest`` of :func:`arturo.surrogates.kalman.factored_update` in the place of
    ``P_ab`` and ``P_bb``. A surrogate that keeps averages has no P, which ``probe`` and ``move`` do not read: its ``grad_avg``
    is in the place of ``P_aa``, the diagonal it observes, if it does, in the place of ``P_ab`` (and of ``P_bb``).
    """

    constants: Constants
    param: list[Tensor]
    grad: list[Tensor]
    mean: list[Tensor]
    prec: list[Tensor]
    a: list[Tensor]
    b: list[Tensor]
    P_aa: list[Tensor]
    P_ab: list[Tensor]
    P_bb: list[Tensor]
    first: list[Any]  # bool or 0-d tensor: nothing was observed yet, b is to be set
    seed: list[Any]  # int or 0-d tensor: of the rounding bits, see arturo.kernels.rounding
    offset: list[int]  # index of the first entry in the whole parameter: the start of a piece or a shard
    alive: Tensor | None  # device-side flag: False leaves every bit as it is (None: True)

    def select(self, chosen: list[int]) -> Batch:
        """The batch of these tensors only."""
        if len(chosen) == len(self.param):
            return self
        columns = [[column[i] for i in chosen] for column in self.columns]
        return Batch(self.constants, *columns, self.alive)  # type: ignore[call-arg, arg-type]

    def in_pieces(self, size: int) -> Batch:
        """The same weights as flat pieces of at most ``size`` entries, so that temporaries stay small.

        Tensors that are not contiguous stay whole.
        """
        if all(p.numel() <= size for p in self.param):
            return self
        rows: list[tuple[Any, ...]] = []
        for *tensors, first, seed, offset in zip(*self.columns, strict=True):
            if all(x.is_contiguous() for x in tensors):
                pieces = zip(*(x.view(-1).split(size) for x in tensors), strict=True)
                rows += [(*piece, first, seed, offset + i * size) for i, piece in enumerate(pieces)]
            else:
                rows.append((*tensors, first, seed, offset))
        columns = [list(column) for column in zip(*rows, strict=True)]
        return Batch(self.constants, *columns, self.alive)  # type: ignore[call-arg, arg-type]

    def in_runs(self, starts: list[tuple[int, ...]]) -> Batch:
        """Each tensor as the runs of entries that are neighbours in the whole parameter; ``starts`` are their indices there.

        A shard of rows is one run, a shard of columns has one in each row.
        """
        rows: list[tuple[Any, ...]] = []
        for begins, (*tensors, first, seed, _) in zip(starts, zip(*self.columns, strict=True), strict=True):
            if len(begins) > 1 and all(x.is_contiguous() for x in tensors):
                runs = zip(*(x.view(len(begins), -1).unbind() for x in tensors), strict=True)
                rows += [(*run, first, seed, start) for run, start in zip(runs, begins, strict=True)]
            else:
                rows.append((*tensors, first, seed, begins[0]))
        columns = [list(column) for column in zip(*rows, strict=True)]
        return Batch(self.constants, *columns, self.alive)  # type: ignore[call-arg, arg-type]

    @property
    def columns(self) -> tuple[list[Any], ...]:
        """The lists: nine of tensors, then ``first``, ``seed`` and ``offset``."""
        return self[1:13]


def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, save on the one backend that lacks it."""
    return torch.float32 if device.type == "mps" else torch.float64


def largest_gradient(dtype: torch.dtype, factor: Scalar = 1.0) -> Scalar:
    """Entries beyond this are missing observations: their squares, or those times ``factor``, would leave ``dtype``'s range."""
    limit = 1e140 if dtype == torch.float64 else 1e18
    if isinstance(factor, Tensor):
        return limit / factor.abs().clamp(min=1)
    return limit / max(abs(factor), 1.0)
