"""The passes in plain tensor operations, tensor by tensor: works on any device, and is what the other kernels are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from arturo.kernels.adaptive import Moves
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.kernels.batch import sum_dtype
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned


class Eager:
    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        self.rows = rows

    def observe(self) -> Tensor:
        return observe_all(observe, self.rows)

    def move(self, moves: Moves) -> None:
        move_all(move, self.rows, moves)


def observe_all(observe: Callable[[AdaptiveRow], Tensor], rows: Sequence[AdaptiveRow]) -> Tensor:
    """Row by row, band by band."""
    parts = [[observe(band) for band in row.bands()] for row in rows]
    return joined([some[0] if len(some) == 1 else torch.stack(some).sum(0) for some in parts])


def move_all(move: Callable[[AdaptiveRow, Moves], None], rows: Sequence[AdaptiveRow], moves: Moves) -> None:
    for row, *own in zip(rows, *moves, strict=True):
        for band in row.bands():
            move(band, Moves(*own))


def observe(row: AdaptiveRow) -> Tensor:
    """The noise. An entry that is not finite, or too large to square, is a missing observation: no innovation, no news."""
    if row.mean.dtype != row.param.dtype:
        follow_parameter(row.mean, row.param, row.alive)
    M, r = row.read("M"), row.read("r")
    E, seen, missing = innovation(row, M)
    variance = torch.where(seen, E.square().mul_(row.share), r)
    weight = row.weight
    new = torch.lerp(r, variance, weight.to(r.dtype) if isinstance(weight, Tensor) else weight)
    least = learned.least_noise(M + E * row.gain, row.sure)
    row.write("r", torch.where(seen, torch.maximum(new, least), r))
    s = row.noise_scale()
    return sums(row, (s, M / s * M, M / s * E, E / s * E), missing)


def innovation(row: AdaptiveRow, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E = G - M, which entries were observed, and how many are missing."""
    g = row.gradient()
    seen = g.abs() <= row.limit  # False for NaN too
    missing = seen.numel() - seen.sum()
    seen = seen if row.alive is None else seen & row.alive
    return torch.where(seen, g - M, 0.0), seen, missing


def sums(row: AdaptiveRow, terms: Sequence[Tensor], missing: Tensor, pull: Tensor | None = None) -> Tensor:
    """Squares of the weights, the sums of ``terms``, the number of missing entries, and the sum of ``pull``."""
    away = row.mean if row.start is None else row.mean - row.start
    dtype = sum_dtype(row.mean.device)
    last = missing.new_zeros((), dtype=dtype) if pull is None else pull.sum(dtype=dtype)
    return torch.stack([*(x.sum(dtype=dtype) for x in (away.square(), *terms)), missing.to(dtype), last])


def move(row: AdaptiveRow, own: Moves) -> None:
    M, gain = row.read("M"), own.gain
    E, _, _ = innovation(row, M)
    M = M + E.mul_(gain.to(E) if isinstance(gain, Tensor) else gain)
    row.write("M", M)
    shift(row, M / row.noise_scale(), own)


def shift(row: AdaptiveRow, step: Tensor, own: Moves) -> None:
    """mean <- keep (mean - pull (mean - start)) - length step, and the parameter after it. Where the step is 0, no pull."""
    keep, pull, length, _ = (x.to(step) if isinstance(x, Tensor) else x for x in own)
    if row.alive is not None:
        step = torch.where(row.alive, step, 0.0)
    away = row.mean if row.start is None else row.mean - row.start
    row.mean.sub_(torch.where(step != 0, away * pull, 0.0)).mul_(keep).sub_(step.mul_(length))
    if row.mean.dtype != row.param.dtype:
        row.param.copy_(row.mean)


def joined(sums: Sequence[Tensor]) -> Tensor:
    """Rows from several devices on the first one's."""
    return torch.stack([x.to(sums[0].device) for x in sums])
