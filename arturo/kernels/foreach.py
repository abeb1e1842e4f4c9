"""The passes in ``torch._foreach`` operations: few launches on accelerators, at the price of lists of temporaries.

The same formulas as :mod:`arturo.kernels.eager`, line by line; there is no ``_foreach_where``, so masks go tensor by tensor.
The list is processed in parts of at most :data:`PART` entries: some ten lists of temporaries of that length are alive at
a time, ten and a half at worst (``tests/test_memory.py``), whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar, constraint_sums
from arturo.kernels import eager
from arturo.kernels.batch import Constants, Row, largest_gradient, sum_dtype
from arturo.kernels.eager import follow_parameter, round_filter, round_precision, stack, write
from arturo.surrogates import kalman

PART = 1 << 22  # entries, 16 MiB a list in float32: long enough for launches not to count
Tensors = list[Tensor]


class ForeachSweep:
    """The rows in parts; tensors larger than a part are cut."""

    def __init__(self, rows: Sequence[Row], k: Constants) -> None:
        self.whole, self.k = rows, k
        self.parts = [rows] if torch.compiler.is_compiling() else _parts(rows)

    def observe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        return _joined([_observe(part, self.k, s_w, eta_w) for part in self.parts])

    def probe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        return _joined([_probe(part, self.k, s_w, eta_w) for part in self.parts])

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None = None) -> Tensor:
        return _joined([_move(part, self.k, s_w, eta_w, factor, moving) for part in self.parts])

    def count(self, eta: Scalar, moving: Tensor | None = None) -> None:
        eager.count(self.whole, eta, moving)


def _parts(rows: Sequence[Row]) -> list[list[Row]]:
    parts: list[list[Row]] = [[]]
    size = 0
    for row in rows:
        for piece in row.pieces(PART // 8):  # the float64 sums go tensor by tensor: an eighth of a part at a time
            size += piece.param.numel()
            if size > PART and parts[-1]:
                parts.append([])
                size = piece.param.numel()
            parts[-1].append(piece)
    return parts


def _observe(rows: Sequence[Row], k: Constants, s_w: Scalar, eta_w: Scalar) -> Tensor:
    for row in rows:
        if row.mean.dtype != row.param.dtype:
            follow_parameter(row.mean, row.param, k.alive)
    g = [row.grad.to(row.mean.dtype) for row in rows]
    seen = [x.abs() <= largest_gradient(x.dtype, k.factor) for x in g]
    if not (isinstance(k.factor, float) and k.factor == 1):
        if any(x is row.grad for x, row in zip(g, rows, strict=True)):  # never write into a gradient
            g = list(torch._foreach_mul(g, k.factor))
        else:
            torch._foreach_mul_(g, k.factor)
    missing = [x.numel() - x.sum(dtype=sum_dtype(x.device)) for x in seen]
    m = _decayed(rows, k)
    a, b = _widened(rows, [row.a for row in rows]), _widened(rows, [row.b for row in rows])
    for i, row in enumerate(rows):
        if not isinstance(row.first, bool) or row.first:
            b_0 = kalman.first_intercept(g[i], seen[i], m[i], k.a_0, k.consistent)
            b[i] = torch.where(row.first, b_0, b[i]) if isinstance(row.first, Tensor) else b_0
    if any(row.rounded for row in rows):
        _factored(rows, k, a, b, g, seen, m)
    else:
        _filter(rows, k, a, b, g, seen, m)
    del g, seen, a, b
    lines = _sums(rows, k, m, s_w, eta_w)
    return stack([torch.cat([line, count.unsqueeze(0)]) for line, count in zip(lines, missing, strict=True)])


def _filter(rows: Sequence[Row], k: Constants, a: Tensors, b: Tensors, g: Tensors, seen: Tensors, m: Tensors) -> None:
    """:func:`arturo.surrogates.kalman.filter_update` into the rows' state."""
    old_aa, old_ab, old_bb = (list(x) for x in zip(*(row.memory for row in rows), strict=True))
    det = torch._foreach_mul(old_aa, old_bb)
    torch._foreach_sub_(det, torch._foreach_mul(old_ab, old_ab))
    torch._foreach_clamp_min_(det, 0.0)
    trace = torch._foreach_add(old_aa, old_bb)
    torch._foreach_mul_(trace, k.q)
    torch._foreach_add_(det, trace)
    torch._foreach_add_(det, k.q * k.q)
    del trace
    P_aa = torch._foreach_add(old_aa, k.q)
    P_bb = torch._foreach_add(old_bb, k.q)

    h = torch._foreach_mul(m, P_aa)
    torch._foreach_add_(h, old_ab)
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
    _write([row.a for row in rows], list(h), k.alive)
    gain = h  # the same memory
    for x, y, z in zip(gain, m, old_ab, strict=True):
        torch.mul(y, z, out=x)
    torch._foreach_add_(gain, P_bb)
    torch._foreach_mul_(gain, inverse_v)
    torch._foreach_mul_(gain, error)
    torch._foreach_add_(gain, b)
    _write([row.b for row in rows], list(gain), k.alive)
    del h, gain, error

    torch._foreach_add_(new, det)
    torch._foreach_mul_(new, inverse_v)
    new_aa = _where(seen, new, P_aa)
    del new, P_aa
    torch._foreach_mul_(det, m)
    new = torch._foreach_mul(old_ab, k.r)
    torch._foreach_sub_(new, det)
    torch._foreach_mul_(new, inverse_v)
    new_ab = _where(seen, new, old_ab)
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
    for target, values in ((old_aa, new_aa), (old_ab, new_ab), (old_bb, new_bb)):
        _write(target, values, k.alive)


def _factored(rows: Sequence[Row], k: Constants, a: Tensors, b: Tensors, g: Tensors, seen: Tensors, m: Tensors) -> None:
    """State in bfloat16 goes tensor by tensor: its hash has no ``_foreach`` form."""
    for i, row in enumerate(rows):
        P_aa, slope, rest = (x.to(row.mean.dtype) for x in row.memory)
        new = kalman.factored_update(a[i], b[i], P_aa, slope, rest, g[i], seen[i], m[i], k.q, k.r)
        for target, value in zip((row.a, row.b, *row.memory), round_filter(new, row), strict=True):
            write(target, value, k.alive)


def _probe(rows: Sequence[Row], k: Constants, s_w: Scalar, eta_w: Scalar) -> Tensor:
    return stack(_sums(rows, k, _decayed(rows, k), s_w, eta_w))


def _move(rows: Sequence[Row], k: Constants, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None) -> Tensor:
    m, prec = _decayed(rows, k), _widened(rows, [row.prec for row in rows])
    x, _, A = _direction(rows, k, m, prec, s_w, eta_w)
    sums = [d.to(sum_dtype(d.device), copy=True).mul_(d * y).sum() for d, y in zip(x, prec, strict=True)]
    torch._foreach_mul_(x, factor * s_w)
    torch._foreach_sub_(m, x)
    _write([row.mean for row in rows], m, moving)
    torch._foreach_add_(A, torch._foreach_mul(prec, k.nu))
    torch._foreach_mul_(A, 1 / (k.rho + k.nu))
    A = [round_precision(new, row) if row.rounded else new for new, row in zip(A, rows, strict=True)]
    _write([row.prec for row in rows], A, moving)
    for row in rows:
        if row.mean.dtype != row.param.dtype:
            write(row.param, row.mean, moving)
    return stack(sums)


def _direction(
    rows: Sequence[Row], k: Constants, m: Tensors, prec: Tensors, s_w: Scalar, eta_w: Scalar
) -> tuple[Tensors, Tensors, Tensors]:
    """``x``, ``den`` and ``A`` of :func:`arturo.core.trust_region.step_direction`."""
    a = _widened(rows, [row.a for row in rows])
    x = torch._foreach_mul(a, m)
    torch._foreach_add_(x, _widened(rows, [row.b for row in rows]))
    if k.rho_lam:
        torch._foreach_add_(x, torch._foreach_mul(m, k.rho_lam))
    A = torch._foreach_mul(a, 1.0) if k.floor is None else torch._foreach_clamp_min(a, float(k.floor))
    torch._foreach_add_(A, k.rho_lam)
    den = torch._foreach_mul(A, s_w)
    torch._foreach_add_(den, torch._foreach_mul(prec, eta_w))
    torch._foreach_div_(x, den)
    return list(x), list(den), list(A)


def _sums(rows: Sequence[Row], k: Constants, m: Tensors, s_w: Scalar, eta_w: Scalar) -> Tensors:
    """``S_0, S_1, S_2`` of :func:`arturo.core.trust_region.constraint_sums` as one line per tensor."""
    prec = _widened(rows, [row.prec for row in rows])
    x, den, _ = _direction(rows, k, m, prec, s_w, eta_w)
    return [torch.stack(constraint_sums(d, below, y, sum_dtype(d.device))) for d, below, y in zip(x, den, prec, strict=True)]


def _decayed(rows: Sequence[Row], k: Constants) -> Tensors:
    return list(torch._foreach_mul([row.mean for row in rows], k.decay))


def _widened(rows: Sequence[Row], stored: Tensors) -> Tensors:
    """State in the mean's precision."""
    return [x.to(row.mean.dtype) for x, row in zip(stored, rows, strict=True)]


def _where(masks: Tensors, yes: Sequence[Tensor], no: Sequence[Tensor]) -> Tensors:
    return [torch.where(ok, x, y) for ok, x, y in zip(masks, yes, no, strict=True)]


def _joined(tables: list[Tensor]) -> Tensor:
    return torch.cat([table.to(tables[0].device) for table in tables])


def _write(target: Tensors, value: Tensors, flag: Tensor | None) -> None:
    if flag is None:
        torch._foreach_copy_(target, value)
    else:
        for old, new in zip(target, value, strict=True):
            write(old, new, flag)
