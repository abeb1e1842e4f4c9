"""What a step works on (:class:`Slot`), and how far it may go (:func:`bounds`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.hyperparameters import ARTURO
from arturo.kernels import rounding
from arturo.kernels.batch import Batch, Constants
from arturo.sharding import Piece
from arturo.trust_region import Scalar

DECAY_PER_LR = 1e-3  # kl_bound=None: at lr = 1 weight_decay means what it means to AdamW at its default lr
KL_PER_WEIGHT = 1e-7  # nats; kl_bound=None is this times the number of weights that take part (docs/tuning.md)


class Slot(NamedTuple):
    """One parameter group with the tensors that take part in this step, list by list; P as in :class:`Batch`."""

    group: dict[str, Any]
    param: list[Tensor]
    grad: list[Tensor]
    mean: list[Tensor]
    prec: list[Tensor]
    a: list[Tensor]
    b: list[Tensor]
    P_aa: list[Tensor]
    P_ab: list[Tensor]
    P_bb: list[Tensor]
    step: list[Tensor]
    eta: list[Tensor]
    number: list[int]  # each parameter's place among all of the optimizer's
    piece: list[Piece]  # what of each parameter lies in this process; empty without DTensors
    scale: list[Tensor]  # arturo.loss_scale: of every parameter of the group with state, also without a gradient now

    def as_vectors(self) -> Slot:
        """What kernels take: complex numbers as pairs of reals (their state already is), scalars as vectors of one.

        A 0-d tensor would take on the dual's float64, and torch.compile loses what is written to a 0-d float64 input.
        """
        if not any(p.is_complex() or p.dim() == 0 for p in self.param):
            return self
        vectors = [[_as_vector(x) for x in tensors] for tensors in self[1:10]]
        return Slot(self.group, *vectors, *self[10:])  # type: ignore[call-arg, arg-type]

    @property
    def size(self) -> int:
        """Real numbers that take part, those that another process counts left out."""
        if not self.piece:
            return sum(p.numel() for p in self.param)
        return sum(p.numel() for p, piece in zip(self.param, self.piece, strict=True) if piece.counted)

    def batches(self, lr: Scalar, steps: list[Any], unit: Scalar) -> list[tuple[Batch, bool]]:
        """:meth:`batch`, and whether its sums count here; what another process counts is a batch of its own."""
        if not self.param:
            return []
        batch = self.batch(lr, steps, unit)
        if not self.piece:
            return [(batch, True)]
        found = []
        for counted in (True, False):
            chosen = [i for i, piece in enumerate(self.piece) if piece.counted is counted]
            if chosen:
                found.append((batch.select(chosen).in_runs([self.piece[i].starts for i in chosen]), counted))
        return found

    def batch(self, lr: Scalar, steps: list[Any], unit: Scalar) -> Batch:
        """The kernel's view of this slot; ``steps`` are the steps taken so far, on the host or on the device.

        ``unit`` is that of the loss (:mod:`arturo.loss_scale`).
        """
        group = self.group
        constants = Constants(
            **ARTURO.constants(group),
            factor=(-1.0 if group["maximize"] else 1.0) / unit,
            decay=_decay(decayed_part(group, lr)) if group["weight_decay"] else 1.0,
        )
        alive = lr > 0 if isinstance(lr, Tensor) else None
        first = [step == 0 for step in steps]
        seeds = [
            rounding.seed(_integer(step), i) if prec.dtype == torch.bfloat16 else 0
            for step, i, prec in zip(steps, self.number, self.prec, strict=True)
        ]
        return Batch(constants, *self[1:10], first, seeds, [0] * len(first), alive)


def _as_vector(x: Tensor) -> Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x if x.dim() else x.unsqueeze(0)


def _integer(step: Any) -> Any:
    return step.to(torch.int64) if isinstance(step, Tensor) else int(step)


def decayed_part(group: Mapping[str, Any], lr: Scalar) -> Scalar:
    """What weight decay takes of the mean in one step.

    With a ``kl_bound`` the paper's: its tabulated values keep their meaning. Without one, no matter how many weights there are:
    the default bound grows with them, and with it would the decay.
    """
    kl_bound, wd = group["kl_bound"], float(group["weight_decay"])
    return wd * (DECAY_PER_LR * lr if kl_bound is None else kl_bound * lr * lr)


def _decay(part: Scalar) -> Scalar:
    """The factor on the mean; more than all of it cannot decay."""
    return (1 - part).clamp(min=0) if isinstance(part, Tensor) else max(1 - part, 0.0)


def weight_count(sizes: Sequence[Scalar], lrs: list[Scalar]) -> Scalar:
    """Real numbers that take part: gradients are there and lr is not 0."""
    return sum(size * (lr > 0) for size, lr in zip(sizes, lrs, strict=True))


def bounds(slots: list[Slot], lrs: list[Scalar], sizes: Sequence[Scalar]) -> list[Scalar]:
    """e = kl_bound * lr^2 of each group, in nats. Step length is proportional to lr, as for SGD."""
    n = weight_count(sizes, lrs)
    kl_bounds = [slot.group["kl_bound"] for slot in slots]
    return [(KL_PER_WEIGHT * n if kl is None else kl) * lr * lr for kl, lr in zip(kl_bounds, lrs, strict=True)]
