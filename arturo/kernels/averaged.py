"""The passes for surrogates that keep running averages: the averages in a separate pass, the rest by another kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar
from arturo.kernels import DeviceSweep, Sweep, eager
from arturo.kernels.batch import Constants, Row, sum_dtype
from arturo.surrogates import averages


class AveragedSweep:
    """``observe`` updates the averages, a tensor at a time in pieces, and then probes.

    Args:
        sweep: does the other passes.
    """

    def __init__(self, rows: Sequence[Row], k: Constants, sweep: Sweep) -> None:
        self.k, self.sweep = k, sweep
        counts = [row.step.to(sum_dtype(row.step.device)) + 1 for row in rows]
        beta_g, beta_h = k.averaging
        weights = [(averages.average_weight(beta_g, t), averages.average_weight(beta_h, t)) for t in counts]
        self.alone = [(_pieces(row), weight) for row, weight in zip(rows, weights, strict=True)]

    def observe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        missing = [eager.learn(piece, self.k, weights)[2] for pieces, weights in self.alone for piece in pieces]
        sums = self.sweep.probe(s_w, eta_w)
        total = eager.stack(missing).sum().to(sums.device).reshape(1, 1)
        return torch.cat([sums, torch.cat([total, sums.new_zeros(len(sums) - 1, 1)])], dim=1)

    def probe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        return self.sweep.probe(s_w, eta_w)

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar) -> Tensor:
        return self.sweep.move(s_w, eta_w, factor)

    def count(self, eta: float) -> None:
        self.sweep.count(eta)


class AveragedDeviceSweep(AveragedSweep):
    """The same where writes can be masked."""

    def __init__(self, rows: Sequence[Row], k: Constants, sweep: DeviceSweep) -> None:
        super().__init__(rows, k, sweep)
        self.masked = sweep

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None = None) -> Tensor:
        return self.masked.move(s_w, eta_w, factor, moving)

    def count(self, eta: Scalar, moving: Tensor | None = None) -> None:
        self.masked.count(eta, moving)


def _pieces(row: Row) -> list[Row]:
    return [row] if torch.compiler.is_compiling() else list(row.pieces(eager.PIECE))
