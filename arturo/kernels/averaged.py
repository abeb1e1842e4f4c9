"""The passes for surrogates that keep running averages: the averages in a pass of their own, the rest by another kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.kernels import Kernel, eager
from arturo.kernels.batch import Batch, Constants, largest_gradient, sum_dtype
from arturo.step import Slot
from arturo.surrogates import averages
from arturo.surrogates.adam_moments import moments_update
from arturo.surrogates.diag_hessian import diagonal_update
from arturo.trust_region import Scalar


class Prepared(NamedTuple):
    """Every tensor by itself for the averages, with the new values' weights, and whatever the other kernel wants."""

    alone: list[Batch]
    weights: list[list[Tensor]]
    rest: Any


class Averaged:
    """A kernel whose ``observe`` updates the averages, a tensor at a time in pieces, and then probes.

    Args:
        kernel: does the other passes.
        slot: the parameters; its group names the surrogate and the averaging constants.
    """

    def __init__(self, kernel: Kernel, slot: Slot) -> None:
        self.kernel, self.moments = kernel, slot.group["surrogate"] == "adam"
        betas = slot.group["averaging"] or averages.DEFAULT
        counts = {id(p): step.to(sum_dtype(step.device)) + 1 for p, step in zip(slot.param, slot.step, strict=True)}
        self.weights = {key: [averages.average_weight(beta, t) for beta in betas] for key, t in counts.items()}

    def prepare(self, batch: Batch) -> Prepared:
        alone = [eager.prepare(batch.select([i])) for i in range(len(batch.param))]
        return Prepared(alone, [self.weights[id(p)] for p in batch.param], self.kernel.prepare(batch))

    def observe(self, prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
        missing = [self._update(batch, *w) for batch, w in zip(prepared.alone, prepared.weights, strict=True)]
        rows = self.kernel.probe(prepared.rest, s_w, eta_w)
        total = eager.stack(missing).sum().to(rows.device).reshape(1, 1)
        return torch.cat([rows, torch.cat([total, rows.new_zeros(len(rows) - 1, 1)])], dim=1)

    def probe(self, prepared: Prepared, s_w: Scalar, eta_w: Scalar) -> Tensor:
        return self.kernel.probe(prepared.rest, s_w, eta_w)

    def move(self, prepared: Prepared, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
        return self.kernel.move(prepared.rest, s_w, eta_w, scale, moving)

    def _update(self, batch: Batch, w_g: Tensor, w_h: Tensor) -> Tensor:
        """One parameter, piece by piece; returns how many entries were missing."""
        missing = []
        for i, mean in enumerate(batch.mean):
            if mean.dtype != batch.param[i].dtype:
                eager.follow_parameter(mean, batch.param[i], batch.alive)
            stored = batch.a[i], batch.b[i], batch.P_aa[i]
            h = None if self.moments else batch.P_ab[i]
            new, count = update_tensor(batch.constants, batch.grad[i], h, mean, stored[0], stored[2], w_g, w_h)
            for target, value in zip(stored, new, strict=True):
                eager.write(target, value, batch.alive)
            missing.append(count)
        return torch.stack(missing).sum()


def update_tensor(
    k: Constants, grad: Tensor, h: Tensor | None, mean: Tensor, a: Tensor, grad_avg: Tensor, w_g: Tensor, w_h: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """The new ``a``, ``b`` and ``grad_avg``, and how many entries were missing. ``h`` is the diagonal; None: Adam's moments."""
    limit = largest_gradient(mean.dtype, k.factor)
    g = grad.detach().to(mean.dtype)
    seen = g.abs() <= limit  # False for NaN too
    if h is not None:
        seen = seen & (h.abs() <= limit)
        h = eager.scaled(h, k)
    g = eager.scaled(g, k)
    if h is None:
        a, grad_avg = moments_update(a, grad_avg, g, seen, w_g, w_h)
    else:
        a, grad_avg = diagonal_update(a, grad_avg, g, h, seen, w_g, w_h)
    missing = torch.where(seen, 0.0, 1.0).sum(dtype=sum_dtype(mean.device))
    return (a, averages.intercept(a, grad_avg, mean * k.decay), grad_avg), missing
