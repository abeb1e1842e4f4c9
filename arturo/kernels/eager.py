"""The passes in plain tensor operations: works on any device, and is what the other kernels are measured against.

``observe_tensor`` and its siblings are pure functions of one parameter's tensors. The loop applies them one by one, so
that only one tensor's temporaries are alive at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arturo import trust_region
from arturo.kernels.batch import Batch, Constants, largest_gradient, sum_dtype
from arturo.surrogates import kalman
from arturo.trust_region import Scalar


def observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    k, rows = batch.constants, []
    for i, mean in enumerate(batch.mean):
        if mean.dtype != batch.param[i].dtype:
            follow_parameter(mean, batch.param[i], batch.alive)
        old = batch.a[i], batch.b[i], batch.P_aa[i], batch.P_ab[i], batch.P_bb[i]
        new, row = observe_tensor(k, batch.grad[i], mean, batch.prec[i], old, batch.first[i], s_w, eta_w)
        for target, value in zip(old, new, strict=True):
            write(target, value, batch.alive)
        rows.append(row)
    return stack(rows)


def probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    k = batch.constants
    rows = [
        probe_tensor(k, mean * k.decay, prec, a, b, s_w, eta_w)
        for mean, prec, a, b in zip(batch.mean, batch.prec, batch.a, batch.b, strict=True)
    ]
    return stack(rows)


def move(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    k, rows = batch.constants, []
    for param, mean, prec, a, b in zip(batch.param, batch.mean, batch.prec, batch.a, batch.b, strict=True):
        new_mean, new_prec, row = move_tensor(k, mean, prec, a, b, s_w, eta_w, scale)
        write(mean, new_mean, moving)
        write(prec, new_prec, moving)
        if mean.dtype != param.dtype:
            write(param, mean, moving)
        rows.append(row)
    return stack(rows)


def observe_tensor(
    k: Constants,
    grad: Tensor,
    mean: Tensor,
    prec: Tensor,
    old: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    first: bool | Tensor,
    s_w: Scalar,
    eta_w: Scalar,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The filter's new ``a, b, P_aa, P_ab, P_bb`` and the row ``S_0, S_1, S_2, missing`` at the trial eta."""
    g = grad.to(mean.dtype)
    if k.maximize:
        g = -g
    seen = g.abs() <= largest_gradient(g.dtype)  # False for NaN too
    m = mean * k.decay
    a, b, P_aa, P_ab, P_bb = old
    if first is not False:
        b_0 = kalman.first_intercept(g, seen, m, k.a_0, k.consistent)
        b = b_0 if first is True else torch.where(first, b_0, b)
    a, b, P_aa, P_ab, P_bb = kalman.filter_update(a, b, P_aa, P_ab, P_bb, g, seen, m, k.q, k.r)
    missing = seen.numel() - seen.sum(dtype=sum_dtype(m.device))
    row = torch.cat([probe_tensor(k, m, prec, a, b, s_w, eta_w), missing.unsqueeze(0)])
    return (a, b, P_aa, P_ab, P_bb), row


def probe_tensor(k: Constants, m: Tensor, prec: Tensor, a: Tensor, b: Tensor, s_w: Scalar, eta_w: Scalar) -> Tensor:
    """The row ``S_0, S_1, S_2`` at the trial eta; ``m`` is the decayed mean."""
    num = trust_region.model_gradient(a, b, m, k.rho_lam)
    A = trust_region.curvature(a, k.rho_lam, k.floor)
    x, den = trust_region.step_direction(num, A, prec, s_w, eta_w)
    return torch.stack(trust_region.constraint_sums(x, den, prec, sum_dtype(m.device)))


def move_tensor(
    k: Constants, mean: Tensor, prec: Tensor, a: Tensor, b: Tensor, s_w: Scalar, eta_w: Scalar, scale: Scalar
) -> tuple[Tensor, Tensor, Tensor]:
    """The new mean, the new precision, and ``S_0`` of the unscaled step."""
    m = mean * k.decay
    num = trust_region.model_gradient(a, b, m, k.rho_lam)
    A = trust_region.curvature(a, k.rho_lam, k.floor)
    x, _ = trust_region.step_direction(num, A, prec, s_w, eta_w)
    s_0 = x.to(sum_dtype(m.device)).square().mul_(prec).sum()
    return m - scale * s_w * x, trust_region.primal_precision(A, prec, k.rho, k.nu), s_0


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


def write(target: Tensor, value: Tensor, flag: Tensor | None) -> None:
    """``target <- value`` where the device-side flag is set; without a flag, always."""
    target.copy_(value if flag is None else torch.where(flag, value.to(target.dtype), target))
