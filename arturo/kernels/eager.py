"""The passes in plain tensor operations: works on any device, and is what the other kernels are measured against.

``observe_tensor`` and its siblings are pure functions of one parameter's tensors. The loop applies them one by one, so
that only one tensor's temporaries are alive at a time, and cuts large tensors into pieces, so that these stay in cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arturo import trust_region
from arturo.kernels import rounding
from arturo.kernels.batch import Batch, Constants, largest_gradient, sum_dtype
from arturo.surrogates import kalman
from arturo.trust_region import Scalar

PIECE = 1 << 15  # entries: 128 KiB in float32, so that a chain of operations stays in cache; measured best of 2^13 to 2^17
Filter = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # a, b and the three numbers of P


def prepare(batch: Batch) -> Batch:
    return batch if torch.compiler.is_compiling() else batch.in_pieces(PIECE)


def observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    k, rows = batch.constants, []
    for i, mean in enumerate(batch.mean):
        if mean.dtype != batch.param[i].dtype:
            follow_parameter(mean, batch.param[i], batch.alive)
        stored = batch.a[i], batch.b[i], batch.P_aa[i], batch.P_ab[i], batch.P_bb[i]
        new, row = observe_tensor(
            k, batch.grad[i], mean, batch.prec[i], stored, batch.first[i], batch.seed[i], batch.offset[i], s_w, eta_w
        )
        for target, value in zip(stored, new, strict=True):
            write(target, value, batch.alive)
        rows.append(row)
    return stack(rows)


def probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    k = batch.constants
    rows = [
        probe_tensor(k, mean * k.decay, prec.to(mean.dtype), a.to(mean.dtype), b.to(mean.dtype), s_w, eta_w)
        for mean, prec, a, b in zip(batch.mean, batch.prec, batch.a, batch.b, strict=True)
    ]
    return stack(rows)


def move(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    rows = move_mean(batch, s_w, eta_w, scale, moving)
    move_precision(batch, moving)
    return rows


def move_mean(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None) -> Tensor:
    """The first half of ``move``, which needs the old precision."""
    rows = []
    for i, (param, mean) in enumerate(zip(batch.param, batch.mean, strict=True)):
        new, row = move_tensor(batch.constants, mean, batch.prec[i], batch.a[i], batch.b[i], s_w, eta_w, scale)
        write(mean, new, moving)
        if mean.dtype != param.dtype:
            write(param, mean, moving)
        rows.append(row)
    return stack(rows)


def move_precision(batch: Batch, moving: Tensor | None) -> None:
    """The second half: neither eta nor the mean has a part in it."""
    k = batch.constants
    for i, (mean, stored) in enumerate(zip(batch.mean, batch.prec, strict=True)):
        prec, a = widened(mean.dtype, stored, batch.a[i])
        new = trust_region.primal_precision(trust_region.curvature(a, k.rho_lam, k.floor), prec, k.rho, k.nu)
        if is_rounded(stored):
            new = round_precision(new, stored, batch.seed[i], batch.offset[i])
        write(stored, new, moving)


def observe_tensor(
    k: Constants,
    grad: Tensor,
    mean: Tensor,
    prec: Tensor,
    stored: Filter,
    first: bool | Tensor,
    seed: int | Tensor,
    offset: int,
    s_w: Scalar,
    eta_w: Scalar,
) -> tuple[Filter, Tensor]:
    """What the filter stores next, and the row ``S_0, S_1, S_2, missing`` at the trial eta."""
    g = grad.to(mean.dtype)
    seen = g.abs() <= largest_gradient(g.dtype, k.factor)  # False for NaN too
    g = scaled(g, k)
    m = mean * k.decay
    rounded = is_rounded(prec)
    prec, a, b, P_1, P_2, P_3 = widened(mean.dtype, prec, *stored)
    if first is not False:
        b_0 = kalman.first_intercept(g, seen, m, k.a_0, k.consistent)
        b = b_0 if first is True else torch.where(first, b_0, b)
    update = kalman.factored_update if rounded else kalman.filter_update
    new = update(a, b, P_1, P_2, P_3, g, seen, m, k.q, k.r)
    if rounded:
        new = round_filter(new, stored[0], seed, offset)
    a, b = widened(mean.dtype, *new[:2])  # the step follows the model as it is stored
    missing = torch.where(seen, 0.0, 1.0).sum(dtype=sum_dtype(m.device))
    row = torch.cat([probe_tensor(k, m, prec, a, b, s_w, eta_w), missing.unsqueeze(0)])
    return new, row


def probe_tensor(k: Constants, m: Tensor, prec: Tensor, a: Tensor, b: Tensor, s_w: Scalar, eta_w: Scalar) -> Tensor:
    """The row ``S_0, S_1, S_2`` at the trial eta; ``m`` is the decayed mean."""
    num = trust_region.model_gradient(a, b, m, k.rho_lam)
    A = trust_region.curvature(a, k.rho_lam, k.floor)
    x, den = trust_region.step_direction(num, A, prec, s_w, eta_w)
    return torch.stack(trust_region.constraint_sums(x, den, prec, sum_dtype(m.device)))


def move_tensor(
    k: Constants, mean: Tensor, prec: Tensor, a: Tensor, b: Tensor, s_w: Scalar, eta_w: Scalar, scale: Scalar
) -> tuple[Tensor, Tensor]:
    """The new mean, and ``S_0`` of the unscaled step."""
    m = mean * k.decay
    prec, a, b = widened(mean.dtype, prec, a, b)
    num = trust_region.model_gradient(a, b, m, k.rho_lam)
    A = trust_region.curvature(a, k.rho_lam, k.floor)
    x, _ = trust_region.step_direction(num, A, prec, s_w, eta_w)
    return m - scale * s_w * x, x.to(sum_dtype(m.device), copy=True).mul_(x * prec).sum()


def scaled(g: Tensor, k: Constants) -> Tensor:
    """The gradient as the model sees it; never written into."""
    return g if isinstance(k.factor, float) and k.factor == 1 else g * k.factor


def stack(rows: list[Tensor]) -> Tensor:
    """One row per tensor, on the device of the first."""
    return torch.stack([row.to(rows[0].device) for row in rows])


def follow_parameter(mean: Tensor, param: Tensor, alive: Tensor | None) -> None:
    """Take over what someone else wrote into a half-precision parameter (loaded weights, an average, a draw).

    Where the parameter still is the rounded mean, the mean knows more digits and stays. Bits are compared: a compiler may
    leave out the rounding before a comparison of numbers, and then no parameter ever is the rounded mean.
    """
    untouched = mean.to(param.dtype).view(torch.int16) == param.view(torch.int16)
    write(mean, torch.where(untouched, mean, param.to(mean.dtype)), alive)


def is_rounded(stored: Tensor) -> bool:
    """Whether this is state in bfloat16."""
    return stored.dtype == torch.bfloat16


def widened(dtype: torch.dtype, *stored: Tensor) -> tuple[Tensor, ...]:
    """State in the mean's precision; itself where it already is."""
    return tuple(x.to(dtype) for x in stored)


def round_filter(new: Filter, like: Tensor, seed: int | Tensor, offset: int) -> Filter:
    """``a, b`` and the factor of P in bfloat16."""
    entry = rounding.entries(like, offset)
    a, b, P_aa, slope, rest = (rounding.round_randomly(x, rounding.draw(seed, entry, i)) for i, x in enumerate(new))
    return a, b, P_aa, slope, rest


def round_precision(new: Tensor, like: Tensor, seed: int | Tensor, offset: int) -> Tensor:
    """The precision in bfloat16."""
    return rounding.round_randomly(new, rounding.draw(seed, rounding.entries(like, offset), 5))


def write(target: Tensor, value: Tensor, flag: Tensor | None) -> None:
    """``target <- value`` where the device-side flag is set; without a flag, always."""
    target.copy_(value if flag is None else torch.where(flag, value.to(target.dtype), target))
