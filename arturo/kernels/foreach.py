"""The passes in ``torch._foreach`` operations: few launches on accelerators, at the price of lists of temporaries.

The same formulas as :mod:`arturo.kernels.eager`, line by line; there is no ``_foreach_where``, so masks go tensor by tensor.
The list is worked off in parts of at most :data:`PART` entries: some ten lists of temporaries of that length are alive at
a time, ten and a half at worst (``tests/test_memory.py``), whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arturo.kernels.batch import Batch, largest_gradient, sum_dtype
from arturo.kernels.eager import (
    follow_parameter,
    is_rounded,
    round_filter,
    round_precision,
    stack,
    widened,
    write,
)
from arturo.surrogates import kalman
from arturo.trust_region import Scalar, constraint_sums

PART = 1 << 22  # entries, 16 MiB a list in float32: long enough for launches not to count
Tensors = list[Tensor]


def prepare(batch: Batch) -> list[Batch]:
    """The batch in parts; tensors larger than a part are cut."""
    if torch.compiler.is_compiling():
        return [batch]
    batch = batch.in_pieces(PART // 8)  # the float64 sums go tensor by tensor: an eighth of a part at a time
    parts: list[list[int]] = [[]]
    size = 0
    for i, p in enumerate(batch.param):
        size += p.numel()
        if size > PART and parts[-1]:
            parts.append([])
            size = p.numel()
        parts[-1].append(i)
    return [batch.select(part) for part in parts]


def observe(parts: list[Batch], s_w: Scalar, eta_w: Scalar) -> Tensor:
    return _joined([_observe(part, s_w, eta_w) for part in parts])


def probe(parts: list[Batch], s_w: Scalar, eta_w: Scalar) -> Tensor:
    return _joined([_probe(part, s_w, eta_w) for part in parts])


def move(parts: list[Batch], s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor:
    return _joined([_move(part, s_w, eta_w, scale, moving) for part in parts])


def _observe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    k = batch.constants
    for mean, param in zip(batch.mean, batch.param, strict=True):
        if mean.dtype != param.dtype:
            follow_parameter(mean, param, batch.alive)
    g = [grad.to(mean.dtype) for grad, mean in zip(batch.grad, batch.mean, strict=True)]
    seen = [x.abs() <= largest_gradient(x.dtype, k.factor) for x in g]
    if not (isinstance(k.factor, float) and k.factor == 1):
        if any(x is grad for x, grad in zip(g, batch.grad, strict=True)):  # never write into a gradient
            g = list(torch._foreach_mul(g, k.factor))
        else:
            torch._foreach_mul_(g, k.factor)
    missing = [x.numel() - x.sum(dtype=sum_dtype(x.device)) for x in seen]
    m = _decayed(batch)
    a, b = _widened(batch, batch.a), _widened(batch, batch.b)
    for i, first in enumerate(batch.first):
        if not isinstance(first, bool) or first:
            b_0 = kalman.first_intercept(g[i], seen[i], m[i], k.a_0, k.consistent)
            b[i] = torch.where(first, b_0, b[i]) if isinstance(first, Tensor) else b_0
    if any(is_rounded(x) for x in batch.a):
        _factored(batch, a, b, g, seen, m)
    else:
        _filter(batch, a, b, g, seen, m)
    del g, seen, a, b
    rows = _sums(batch, m, _widened(batch, batch.a), _widened(batch, batch.b), s_w, eta_w)
    return stack([torch.cat([row, count.unsqueeze(0)]) for row, count in zip(rows, missing, strict=True)])


def _filter(batch: Batch, a: Tensors, b: Tensors, g: Tensors, seen: Tensors, m: Tensors) -> None:
    """:func:`arturo.surrogates.kalman.filter_update` into the batch's state."""
    k = batch.constants
    det = torch._foreach_mul(batch.P_aa, batch.P_bb)
    torch._foreach_sub_(det, torch._foreach_mul(batch.P_ab, batch.P_ab))
    torch._foreach_clamp_min_(det, 0.0)
    trace = torch._foreach_add(batch.P_aa, batch.P_bb)
    torch._foreach_mul_(trace, k.q)
    torch._foreach_add_(det, trace)
    torch._foreach_add_(det, k.q * k.q)
    del trace
    P_aa = torch._foreach_add(batch.P_aa, k.q)
    P_bb = torch._foreach_add(batch.P_bb, k.q)

    h = torch._foreach_mul(m, P_aa)
    torch._foreach_add_(h, batch.P_ab)
    v_aa = torch._foreach_mul(h, h)
    torch._foreach_add_(v_aa, det)
    new = torch._foreach_mul(P_aa, k.r)
    torch._foreach_add_(v_aa, new)
    inverse_v = torch._foreach_div(P_aa, v_aa)
    del v_aa
    error = torch._foreach_mul(a, m)
    torch._foreach_add_(error, b)
    torch._foreach_sub_(error, g)
    torch._foreach_neg_(error)
    for x, ok in zip(error, seen, strict=True):
        x.masked_fill_(~ok, 0.0)
    torch._foreach_mul_(h, inverse_v)
    torch._foreach_mul_(h, error)
    torch._foreach_add_(h, a)
    _write(batch.a, list(h), batch.alive)
    gain = h  # the same memory
    for x, y, z in zip(gain, m, batch.P_ab, strict=True):
        torch.mul(y, z, out=x)
    torch._foreach_add_(gain, P_bb)
    torch._foreach_mul_(gain, inverse_v)
    torch._foreach_mul_(gain, error)
    torch._foreach_add_(gain, b)
    _write(batch.b, list(gain), batch.alive)
    del h, gain, error

    torch._foreach_add_(new, det)
    torch._foreach_mul_(new, inverse_v)
    new_aa = _where(seen, new, P_aa)
    del new, P_aa
    torch._foreach_mul_(det, m)
    new = torch._foreach_mul(batch.P_ab, k.r)
    torch._foreach_sub_(new, det)
    torch._foreach_mul_(new, inverse_v)
    new_ab = _where(seen, new, batch.P_ab)
    torch._foreach_mul_(det, m)
    new = torch._foreach_mul(P_bb, k.r)
    torch._foreach_add_(new, det)
    torch._foreach_mul_(new, inverse_v)
    new_bb = _where(seen, new, P_bb)
    del new, det, P_bb, inverse_v
    inside = torch._foreach_sqrt(new_aa)
    torch._foreach_mul_(inside, torch._foreach_sqrt(new_bb))
    torch._foreach_mul_(inside, [1 - 8 * torch.finfo(x.dtype).eps for x in inside])
    torch._foreach_minimum_(new_ab, inside)
    torch._foreach_neg_(inside)
    torch._foreach_maximum_(new_ab, inside)
    for target, values in ((batch.P_aa, new_aa), (batch.P_ab, new_ab), (batch.P_bb, new_bb)):
        _write(target, values, batch.alive)


def _factored(batch: Batch, a: Tensors, b: Tensors, g: Tensors, seen: Tensors, m: Tensors) -> None:
    """State in bfloat16 goes tensor by tensor: its hash has no ``_foreach`` form."""
    k = batch.constants
    for i, mean in enumerate(batch.mean):
        stored = batch.a[i], batch.b[i], batch.P_aa[i], batch.P_ab[i], batch.P_bb[i]
        P_aa, slope, rest = widened(mean.dtype, *stored[2:])
        new = kalman.factored_update(a[i], b[i], P_aa, slope, rest, g[i], seen[i], m[i], k.q, k.r)
        for target, value in zip(stored, round_filter(new, stored[0], batch.seed[i], batch.offset[i]), strict=True):
            write(target, value, batch.alive)


def _probe(batch: Batch, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return stack(_sums(batch, _decayed(batch), _widened(batch, batch.a), _widened(batch, batch.b), s_w, eta_w))


def _move(batch: Batch, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None) -> Tensor:
    k = batch.constants
    m, prec = _decayed(batch), _widened(batch, batch.prec)
    x, _, A = _direction(batch, m, _widened(batch, batch.a), _widened(batch, batch.b), prec, s_w, eta_w)
    rows = [d.to(sum_dtype(d.device), copy=True).mul_(d * y).sum() for d, y in zip(x, prec, strict=True)]
    torch._foreach_mul_(x, scale * s_w)
    torch._foreach_sub_(m, x)
    _write(batch.mean, m, moving)
    torch._foreach_add_(A, torch._foreach_mul(prec, k.nu))
    torch._foreach_mul_(A, 1 / (k.rho + k.nu))
    for i, stored in enumerate(batch.prec):
        if is_rounded(stored):
            A[i] = round_precision(A[i], stored, batch.seed[i], batch.offset[i])
    _write(batch.prec, A, moving)
    for mean, param in zip(batch.mean, batch.param, strict=True):
        if mean.dtype != param.dtype:
            write(param, mean, moving)
    return stack(rows)


def _direction(
    batch: Batch, m: Tensors, a: Tensors, b: Tensors, prec: Tensors, s_w: Scalar, eta_w: Scalar
) -> tuple[Tensors, Tensors, Tensors]:
    """``x``, ``den`` and ``A`` of :func:`arturo.trust_region.step_direction`."""
    k = batch.constants
    x = torch._foreach_mul(a, m)
    torch._foreach_add_(x, b)
    if k.rho_lam:
        torch._foreach_add_(x, torch._foreach_mul(m, k.rho_lam))
    A = torch._foreach_mul(a, 1.0) if k.floor is None else torch._foreach_clamp_min(a, float(k.floor))
    torch._foreach_add_(A, k.rho_lam)
    den = torch._foreach_mul(A, s_w)
    torch._foreach_add_(den, torch._foreach_mul(prec, eta_w))
    torch._foreach_div_(x, den)
    return list(x), list(den), list(A)


def _sums(batch: Batch, m: Tensors, a: Tensors, b: Tensors, s_w: Scalar, eta_w: Scalar) -> Tensors:
    """``S_0, S_1, S_2`` of :func:`arturo.trust_region.constraint_sums` as one row per tensor."""
    prec = _widened(batch, batch.prec)
    x, den, _ = _direction(batch, m, a, b, prec, s_w, eta_w)
    return [torch.stack(constraint_sums(d, below, y, sum_dtype(d.device))) for d, below, y in zip(x, den, prec, strict=True)]


def _decayed(batch: Batch) -> Tensors:
    return list(torch._foreach_mul(batch.mean, batch.constants.decay))


def _widened(batch: Batch, stored: Tensors) -> Tensors:
    """State in the mean's precision."""
    return [x.to(mean.dtype) for x, mean in zip(stored, batch.mean, strict=True)]


def _where(masks: Tensors, yes: Sequence[Tensor], no: Sequence[Tensor]) -> Tensors:
    return [torch.where(ok, x, y) for ok, x, y in zip(masks, yes, no, strict=True)]


def _joined(rows: list[Tensor]) -> Tensor:
    return torch.cat([row.to(rows[0].device) for row in rows])


def _write(target: Tensors, value: Tensors, flag: Tensor | None) -> None:
    if flag is None:
        torch._foreach_copy_(target, value)
    else:
        for old, new in zip(target, value, strict=True):
            write(old, new, flag)
