"""The passes in plain tensor operations: works on any device, and is what the other kernels are measured against.

``observe_row`` and its siblings work on one row at a time, so that only one tensor's temporaries are alive, and large tensors
are cut into pieces, so that these stay in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arturo.core import rounding, trust_region
from arturo.core.trust_region import Scalar
from arturo.kernels.batch import Constants, Row, largest_gradient, sum_dtype
from arturo.surrogates.surrogate import Observation

PIECE = 1 << 15  # entries: 128 KiB in float32, so that a chain of operations stays in cache; measured best of 2^13 to 2^17


class EagerSweep:
    """The loop. Works for every surrogate and on every device."""

    def __init__(self, rows: Sequence[Row], k: Constants) -> None:
        self.whole, self.k = rows, k
        self.rows = rows if torch.compiler.is_compiling() else [piece for row in rows for piece in row.pieces(PIECE)]

    def observe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        return stack([observe_row(row, self.k, s_w, eta_w) for row in self.rows])

    def probe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        return stack([probe_row(row, self.k, s_w, eta_w) for row in self.rows])

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None = None) -> Tensor:
        sums = [move_mean(row, self.k, s_w, eta_w, factor, moving) for row in self.rows]
        for row in self.rows:
            move_precision(row, self.k, moving)
        return stack(sums)

    def count(self, eta: Scalar, moving: Tensor | None = None) -> None:
        count(self.whole, eta, moving)


def observe_row(row: Row, k: Constants, s_w: Scalar, eta_w: Scalar) -> Tensor:
    """The surrogate's update, and ``S_0, S_1, S_2, missing`` at the trial eta."""
    a, b, missing = learn(row, k, None)
    prec, m = row.prec.to(row.mean.dtype), row.mean * k.decay
    return torch.cat([constraint_row(k, m, prec, a, b, s_w, eta_w), missing.unsqueeze(0)])


def learn(row: Row, k: Constants, weights: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """The surrogate after this gradient, as it is stored; returns a and b, and how many entries were missing."""
    mean, dtype = row.mean, row.mean.dtype
    if dtype != row.param.dtype:
        follow_parameter(mean, row.param, k.alive)
    limit = largest_gradient(dtype, k.factor)
    g = row.grad.detach().to(dtype)
    seen, h = g.abs() <= limit, row.diagonal  # False for NaN too
    if h is not None:
        seen = seen & (h.abs() <= limit)
        h = scaled(h, k)
    stored = row.a, row.b, *row.memory
    a, b, *memory = (x.to(dtype) for x in stored)
    at = Observation(scaled(g, k), seen, mean * k.decay, row.first, h, weights)
    new = row.surrogate.observe(a, b, tuple(memory), at, k)
    if row.rounded:
        new = round_filter(new, row)
    for target, value in zip(stored, new, strict=True):
        write(target, value, k.alive)
    missing = torch.where(seen, 0.0, 1.0).sum(dtype=sum_dtype(mean.device))
    return new[0].to(dtype), new[1].to(dtype), missing  # the step follows the model as it is stored


def probe_row(row: Row, k: Constants, s_w: Scalar, eta_w: Scalar) -> Tensor:
    """``S_0, S_1, S_2`` at the trial eta."""
    dtype = row.mean.dtype
    return constraint_row(k, row.mean * k.decay, row.prec.to(dtype), row.a.to(dtype), row.b.to(dtype), s_w, eta_w)


def constraint_row(k: Constants, m: Tensor, prec: Tensor, a: Tensor, b: Tensor, s_w: Scalar, eta_w: Scalar) -> Tensor:
    """The same from numbers of full precision; ``m`` is the decayed mean."""
    num = trust_region.model_gradient(a, b, m, k.rho_lam)
    A = trust_region.curvature(a, k.rho_lam, k.floor)
    x, den = trust_region.step_direction(num, A, prec, s_w, eta_w)
    return torch.stack(trust_region.constraint_sums(x, den, prec, sum_dtype(m.device)))


def move_mean(row: Row, k: Constants, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None) -> Tensor:
    """The first half of ``move``, which needs the old precision; returns ``S_0`` of the unscaled step."""
    mean = row.mean
    m = mean * k.decay
    prec, a, b = (x.to(mean.dtype) for x in (row.prec, row.a, row.b))
    num = trust_region.model_gradient(a, b, m, k.rho_lam)
    A = trust_region.curvature(a, k.rho_lam, k.floor)
    x, _ = trust_region.step_direction(num, A, prec, s_w, eta_w)
    write(mean, m - factor * s_w * x, moving)
    if mean.dtype != row.param.dtype:
        write(row.param, mean, moving)
    return x.to(sum_dtype(m.device), copy=True).mul_(x * prec).sum()


def move_precision(row: Row, k: Constants, moving: Tensor | None) -> None:
    """The second half: it depends on neither eta nor the mean."""
    prec, a = (x.to(row.mean.dtype) for x in (row.prec, row.a))
    new = trust_region.primal_precision(trust_region.curvature(a, k.rho_lam, k.floor), prec, k.rho, k.nu)
    write(row.prec, round_precision(new, row) if row.rounded else new, moving)


def count(rows: Sequence[Row], eta: Scalar, moving: Tensor | None = None) -> None:
    """One more step, and its multiplier, in every parameter's state."""
    if moving is None:
        torch._foreach_add_([row.step for row in rows], 1)
        for row in rows:
            row.eta.fill_(eta)
        return
    for row in rows:
        row.step.add_(moving.to(row.step.dtype))
        new = torch.where(moving.to(row.eta.device), torch.as_tensor(eta).to(row.eta.device), row.eta)
        row.eta.unsqueeze(0).copy_(new)  # torch.compile loses what is written to a 0-d float64 input itself


def scaled(g: Tensor, k: Constants) -> Tensor:
    """The gradient as the model sees it; never written into."""
    return g if isinstance(k.factor, float) and k.factor == 1 else g * k.factor


def stack(lines: list[Tensor]) -> Tensor:
    """One line per tensor, on the device of the first."""
    return torch.stack([line.to(lines[0].device) for line in lines])


def follow_parameter(mean: Tensor, param: Tensor, alive: Tensor | None) -> None:
    """Take over what someone else wrote into a half-precision parameter (loaded weights, an average, a draw).

    Where the parameter still is the rounded mean, the mean has more digits and stays. Bits are compared: a compiler may omit
    the rounding before a comparison of numbers, and then no parameter would ever equal the rounded mean.
    """
    untouched = mean.to(param.dtype).view(torch.int16) == param.view(torch.int16)
    write(mean, torch.where(untouched, mean, param.to(mean.dtype)), alive)


def round_filter(new: Sequence[Tensor], row: Row) -> tuple[Tensor, ...]:
    """``a, b`` and the factor of P in bfloat16."""
    entry = rounding.entries(row.a, row.offset)
    return tuple(rounding.round_randomly(x, rounding.draw(row.seed, entry, i)) for i, x in enumerate(new))


def round_precision(new: Tensor, row: Row) -> Tensor:
    """The precision in bfloat16."""
    return rounding.round_randomly(new, rounding.draw(row.seed, rounding.entries(row.prec, row.offset), 5))


def write(target: Tensor, value: Tensor, flag: Tensor | None) -> None:
    """``target <- value`` where the device-side flag is set; without a flag, always."""
    target.copy_(value if flag is None else torch.where(flag, value.to(target.dtype), target))
