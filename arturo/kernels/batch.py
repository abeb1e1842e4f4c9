"""What a kernel works on: the tensors of one parameter group, and its constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.trust_region import Scalar

PIECE = 1 << 15  # entries: 128 KiB in float32, so that a chain of operations stays in cache; measured best of 2^13 to 2^17


class Constants(NamedTuple):
    """The numbers of one parameter group, in the paper's letters."""

    q: float  # drift of the filter
    r: float  # noise of the gradient
    rho: float
    rho_lam: float
    nu: float
    floor: float | None
    a_0: float
    consistent: bool  # b_0 = g - a_0 m, not g
    maximize: bool
    share: Scalar  # s: this group's bound over the largest
    decay: Scalar  # factor on the mean before anything else


class Batch(NamedTuple):
    """Lists of equal length; ``mean`` is the parameter itself unless that is half precision."""

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
    first: list[bool] | list[Tensor]  # nothing was observed yet: b is to be set
    alive: Tensor | None  # device-side flag: False leaves every bit as it is (None: True)

    def select(self, chosen: list[int]) -> Batch:
        """The batch of these tensors only."""
        if len(chosen) == len(self.param):
            return self
        columns = [[column[i] for i in chosen] for column in self[1:11]]
        return Batch(self.constants, *columns, self.alive)  # type: ignore[arg-type, call-arg]

    def in_pieces(self) -> Batch:
        """The same weights as flat pieces of at most :data:`PIECE` entries, so that temporaries stay small and in cache.

        Tensors that are not contiguous stay whole.
        """
        if all(p.numel() <= PIECE for p in self.param):
            return self
        rows: list[tuple[Any, ...]] = []
        for tensors in zip(*self[1:11], strict=True):
            whole, first = tensors[:-1], tensors[-1]
            if all(x.is_contiguous() for x in whole):
                rows += [(*piece, first) for piece in zip(*(x.view(-1).split(PIECE) for x in whole), strict=True)]
            else:
                rows.append(tensors)
        columns = [list(column) for column in zip(*rows, strict=True)]
        return Batch(self.constants, *columns, self.alive)  # type: ignore[arg-type, call-arg]


def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, save on the one backend that lacks it."""
    return torch.float32 if device.type == "mps" else torch.float64


def largest_gradient(dtype: torch.dtype) -> float:
    """Entries beyond this are missing observations: their squares would leave the range of ``dtype``."""
    return 1e140 if dtype == torch.float64 else 1e18
