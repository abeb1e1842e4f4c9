"""The passes in ``torch._foreach`` operations: few launches on accelerators, at the price of whole lists of temporaries.

The same formulas as :mod:`arturo.kernels.eager`, line by line; there is no ``_foreach_where``, so masks go tensor by tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arturo.kernels.batch import Batch, largest_gradient, sum_dtype
from arturo.kernels.eager import follow_parameter, stack, write
from arturo.surrogates import kalman
from arturo.trust_region import Scalar

Tensors = list[Tensor]


def observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    k = batch.constants
    for mean, param in zip(batch.mean, batch.param, strict=True):
        if mean.dtype != param.dtype:
            follow_parameter(mean, param, batch.alive)
    g = [grad.to(mean.dtype) for grad, mean in zip(batch.grad, batch.mean, strict=True)]
    if k.maximize:
        g = list(torch._foreach_neg(g))
    seen = [x.abs() <= largest_gradient(x.dtype) for x in g]
    m = _decayed(batch)
    b = list(batch.b)
    for i, first in enumerate(batch.first):
        if not isinstance(first, bool) or first:
            b_0 = kalman.first_intercept(g[i], seen[i], m[i], k.a_0, k.consistent)
            b[i] = torch.where(first, b_0, b[i]) if isinstance(first, Tensor) else b_0

    det = torch._foreach_mul(batch.P_aa, batch.P_bb)
    torch._foreach_sub_(det, torch._foreach_mul(batch.P_ab, batch.P_ab))
    torch._foreach_clamp_min_(det, 0.0)
    torch._foreach_add_(det, torch._foreach_mul(torch._foreach_add(batch.P_aa, batch.P_bb), k.q))
    torch._foreach_add_(det, k.q * k.q)
    P_aa = torch._foreach_add(batch.P_aa, k.q)
    P_bb = torch._foreach_add(batch.P_bb, k.q)
    h = torch._foreach_mul(m, P_aa)
    torch._foreach_add_(h, batch.P_ab)
    v = torch._foreach_mul(h, h)
    torch._foreach_add_(v, det)
    torch._foreach_div_(v, P_aa)
    torch._foreach_add_(v, k.r)

    error = torch._foreach_mul(batch.a, m)
    torch._foreach_add_(error, b)
    torch._foreach_sub_(error, g)
    torch._foreach_div_(error, v)
    step = [torch.where(ok, -x, torch.zeros_like(x)) for ok, x in zip(seen, error, strict=True)]
    torch._foreach_mul_(h, step)
    new_a = list(torch._foreach_add(batch.a, h))
    gain = torch._foreach_mul(m, batch.P_ab)
    torch._foreach_add_(gain, P_bb)
    torch._foreach_mul_(gain, step)
    new_b = list(torch._foreach_add(b, gain))

    new_aa = torch._foreach_mul(P_aa, k.r)
    torch._foreach_add_(new_aa, det)
    m_det = torch._foreach_mul(m, det)
    new_ab = torch._foreach_mul(batch.P_ab, k.r)
    torch._foreach_sub_(new_ab, m_det)
    new_bb = torch._foreach_mul(P_bb, k.r)
    torch._foreach_mul_(m_det, m)
    torch._foreach_add_(new_bb, m_det)
    for new, old in ((new_aa, P_aa), (new_ab, batch.P_ab), (new_bb, P_bb)):
        torch._foreach_div_(new, v)
        for x, y, ok in zip(new, old, seen, strict=True):
            x.copy_(torch.where(ok, x, y))
    inside = torch._foreach_mul(torch._foreach_sqrt(new_aa), torch._foreach_sqrt(new_bb))
    torch._foreach_mul_(inside, [1 - 8 * torch.finfo(x.dtype).eps for x in inside])
    torch._foreach_minimum_(new_ab, inside)
    torch._foreach_maximum_(new_ab, torch._foreach_neg(inside))
    for target, values in ((batch.P_aa, new_aa), (batch.P_ab, new_ab), (batch.P_bb, new_bb)):
        _write(target, list(values), batch.alive)
    _write(batch.a, new_a, batch.alive)
    _write(batch.b, new_b, batch.alive)
    missing = [x.numel() - x.sum(dtype=sum_dtype(x.device)) for x in seen]
    rows = _sums(batch, m, new_a, new_b, s_w, eta_w)
    return stack([torch.cat([row, count.unsqueeze(0)]) for row, count in zip(rows, missing, strict=True)])


def probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return stack(_sums(batch, _decayed(batch), batch.a, batch.b, s_w, eta_w))


def move(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    k = batch.constants
    m = _decayed(batch)
    x, _, A = _direction(batch, m, batch.a, batch.b, s_w, eta_w)
    rows = [d.to(sum_dtype(d.device)).square().mul_(prec).sum() for d, prec in zip(x, batch.prec, strict=True)]
    torch._foreach_mul_(x, scale * s_w)
    _write(batch.mean, list(torch._foreach_sub(m, x)), moving)
    torch._foreach_add_(A, torch._foreach_mul(batch.prec, k.nu))
    torch._foreach_div_(A, k.rho + k.nu)
    _write(batch.prec, A, moving)
    for mean, param in zip(batch.mean, batch.param, strict=True):
        if mean.dtype != param.dtype:
            write(param, mean, moving)
    return stack(rows)


def _decayed(batch: Batch) -> Tensors:
    return list(torch._foreach_mul(batch.mean, batch.constants.decay))


def _direction(
    batch: Batch, m: Tensors, a: Tensors, b: Tensors, s_w: Scalar, eta_w: Scalar
) -> tuple[Tensors, Tensors, Tensors]:
    """``x``, ``den`` and ``A`` of :func:`arturo.trust_region.step_direction`."""
    k = batch.constants
    x = torch._foreach_mul(a, m)
    torch._foreach_add_(x, b)
    if k.rho_lam:
        torch._foreach_add_(x, torch._foreach_mul(m, k.rho_lam))
    A = torch._foreach_mul(a, 1.0) if k.floor is None else torch._foreach_clamp_min(a, k.floor)
    torch._foreach_add_(A, k.rho_lam)
    den = torch._foreach_mul(A, s_w)
    torch._foreach_add_(den, torch._foreach_mul(batch.prec, eta_w))
    torch._foreach_div_(x, den)
    return list(x), list(den), list(A)


def _sums(batch: Batch, m: Tensors, a: Tensors, b: Tensors, s_w: Scalar, eta_w: Scalar) -> Tensors:
    """``S_0, S_1, S_2`` of :func:`arturo.trust_region.constraint_sums` as one row per tensor."""
    x, den, _ = _direction(batch, m, a, b, s_w, eta_w)
    ratio = [(prec / d).to(sum_dtype(d.device)) for prec, d in zip(batch.prec, den, strict=True)]
    term = [d.to(sum_dtype(d.device)) for d in x]
    torch._foreach_mul_(term, term)
    torch._foreach_mul_(term, batch.prec)
    columns = [[t.sum() for t in term]]
    for _ in range(2):
        torch._foreach_mul_(term, ratio)
        columns.append([t.sum() for t in term])
    return [torch.stack(row) for row in zip(*columns, strict=True)]


def _write(target: Tensors, value: Tensors, flag: Tensor | None) -> None:
    if flag is None:
        torch._foreach_copy_(target, value)
    else:
        for old, new in zip(target, value, strict=True):
            write(old, new, flag)
