"""The passes with ``torch._foreach``: one launch per operation for a whole list, which is what counts on accelerators.

Lists are short enough that their temporaries stay near :data:`ENTRIES` entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.kernels.adaptive import Moves, eager
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.kernels.batch import sum_dtype
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned

ENTRIES = 1 << 24  # on an accelerator; a host's caches hold less
HOST_ENTRIES = 1 << 17


class Foreach:
    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        self.lists = list(_lists(rows))
        self.rows = [row for rows in self.lists for row in rows]

    def observe(self) -> Tensor:
        found = [_observe(rows) for rows in self.lists]
        return torch.cat([x.to(found[0].device) for x in found])

    def move(self, moves: Moves) -> None:
        first = 0
        for rows in self.lists:
            here = slice(first, first := first + len(rows))
            _move(rows, Moves(*[numbers[here] for numbers in moves]))


def _lists(rows: Sequence[AdaptiveRow]) -> Iterator[list[AdaptiveRow]]:
    """Rows that share options, step and device, in their order, cut where a list gets long."""
    kinds: dict[Any, list[AdaptiveRow]] = {}
    for row in rows:
        step = id(row.state["step"]) if isinstance(row.t, Tensor) else row.t
        kinds.setdefault((id(row.group), step, row.mean.device, row.mean.dtype, row.start is None), []).append(row)
    for alike in kinds.values():
        most = HOST_ENTRIES if alike[0].mean.device.type == "cpu" else ENTRIES
        some: list[AdaptiveRow] = []
        for row in alike:
            if some and sum(x.mean.numel() for x in some) + row.mean.numel() > most:
                yield some
                some = []
            some.append(row)
        yield some


def _observe(rows: list[AdaptiveRow]) -> Tensor:
    for row in rows:
        if row.mean.dtype != row.param.dtype:
            follow_parameter(row.mean, row.param, row.alive)
    first = rows[0]
    M, r = ([row.state[name] for row in rows] for name in ("M", "r"))
    E, seen, missing = _innovations(rows)
    variance = torch._foreach_mul(E, E)
    torch._foreach_mul_(variance, first.share)
    weight = first.weight
    if isinstance(weight, Tensor):
        new = [torch.lerp(x, y, weight.to(x.dtype)) for x, y in zip(r, variance, strict=True)]
    else:
        new = list(torch._foreach_lerp(r, variance, weight))
    least = torch._foreach_mul(E, first.gain)
    torch._foreach_add_(least, M)
    torch._foreach_mul_(least, first.sure)
    torch._foreach_mul_(least, least)
    torch._foreach_maximum_(new, least)
    for x, y, ok in zip(r, new, seen, strict=True):
        x.copy_(torch.where(ok, y, x))
    s = _noise_scales(rows)
    away = [row.mean for row in rows]
    away = list(torch._foreach_sub(away, [row.state["start"] for row in rows])) if first.start is not None else away
    dtype = sum_dtype(first.mean.device)
    of_M, of_E = torch._foreach_div(M, s), torch._foreach_div(E, s)
    terms = (
        torch._foreach_mul(away, away),
        s,
        torch._foreach_mul(of_M, M),
        torch._foreach_mul(of_M, E),
        torch._foreach_mul(of_E, E),
    )
    columns = [torch.stack([x.sum(dtype=dtype) for x in xs]) for xs in terms]
    return torch.stack([*columns, torch.stack(missing).to(dtype), torch.zeros_like(columns[0])], 1)


def _innovations(rows: list[AdaptiveRow]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """:func:`arturo.kernels.adaptive.eager.innovation` of each."""
    g = [row.gradient() for row in rows]
    seen = [x.abs() <= rows[0].limit for x in g]  # False for NaN too
    missing = [x.numel() - x.sum() for x in seen]
    if rows[0].alive is not None:
        seen = [x & rows[0].alive for x in seen]
    E = list(torch._foreach_sub(g, [row.state["M"] for row in rows]))
    for x, ok in zip(E, seen, strict=True):
        x.masked_fill_(~ok, 0.0)
    return E, seen, missing


def _noise_scales(rows: list[AdaptiveRow]) -> list[Tensor]:
    """:func:`arturo.surrogates.learned.noise_scale` of each, and its least."""
    s = torch._foreach_sqrt([row.state["r"] for row in rows])
    torch._foreach_add_(s, rows[0].group["eps"])
    torch._foreach_clamp_min_(s, learned.least_scale(s[0].dtype))
    return list(s)


def _move(rows: list[AdaptiveRow], own: Moves) -> None:
    E, _, _ = _innovations(rows)
    M, mean = [row.state["M"] for row in rows], [row.mean for row in rows]
    keep, pull, length, gain = (_each(x, mean[0]) for x in own)
    torch._foreach_mul_(E, gain)
    torch._foreach_add_(M, E)
    step = torch._foreach_div(M, _noise_scales(rows))
    if rows[0].alive is not None:
        for row, x, *numbers in zip(rows, step, *own, strict=True):
            eager.shift(row, x, Moves(*numbers))
        return
    away = mean if rows[0].start is None else list(torch._foreach_sub(mean, [row.state["start"] for row in rows]))
    pulls = torch._foreach_mul(away, pull)
    for x, moved in zip(pulls, step, strict=True):
        x.masked_fill_(moved == 0, 0.0)
    torch._foreach_sub_(mean, pulls)
    torch._foreach_mul_(mean, keep)
    torch._foreach_mul_(step, length)
    torch._foreach_sub_(mean, step)
    for row in rows:
        if row.mean.dtype != row.param.dtype:
            row.param.copy_(row.mean)


def _each(numbers: Any, like: Tensor) -> Any:
    """As ``_foreach`` takes a number for each tensor."""
    return list(numbers.to(like).unbind()) if isinstance(numbers, Tensor) else numbers.tolist()
