"""The passes with ``torch._foreach``: one launch per operation for a whole list, which is what counts on accelerators.

Lists are short enough that their temporaries stay near :data:`ENTRIES` entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.kernels.adaptive import eager
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

    def move(self, keep: Any, length: Any) -> None:
        first = 0
        for rows in self.lists:
            here = slice(first, first := first + len(rows))
            _move(rows, keep[here], length[here])


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
    g = [row.gradient() for row in rows]
    seen = [x.abs() <= first.limit for x in g]  # False for NaN too
    missing = [x.numel() - x.sum() for x in seen]
    if first.alive is not None:
        seen = [x & first.alive for x in seen]
    E = torch._foreach_sub(g, M)
    unseen = [~x for x in seen]
    for x, mask in zip(E, unseen, strict=True):
        x.masked_fill_(mask, 0.0)
    variance = torch._foreach_mul(E, E)
    torch._foreach_mul_(variance, first.share)
    variance = tuple(torch.where(ok, x, y) for ok, x, y in zip(seen, variance, r, strict=True))
    weight = first.weight
    if isinstance(weight, Tensor):
        for x, y in zip(r, variance, strict=True):
            x.lerp_(y, weight.to(x.dtype))
    else:
        torch._foreach_lerp_(r, variance, weight)
    torch._foreach_mul_(E, first.gain)
    torch._foreach_add_(M, E)
    s = _noise_scales(rows)
    away = [row.mean for row in rows]
    away = list(torch._foreach_sub(away, [row.state["start"] for row in rows])) if first.start is not None else away
    pull = torch._foreach_div(M, s)
    torch._foreach_mul_(pull, M)
    dtype = sum_dtype(first.mean.device)
    columns = [torch.stack([x.sum(dtype=dtype) for x in xs]) for xs in (torch._foreach_mul(away, away), s, pull)]
    return torch.stack([*columns, torch.stack(missing).to(dtype)], 1)


def _noise_scales(rows: list[AdaptiveRow]) -> list[Tensor]:
    """:func:`arturo.surrogates.learned.noise_scale` of each, and its least."""
    s = torch._foreach_mul([row.state["M"] for row in rows], learned.SURE)
    torch._foreach_mul_(s, s)
    torch._foreach_maximum_(s, [row.state["r"] for row in rows])
    torch._foreach_sqrt_(s)
    torch._foreach_add_(s, rows[0].group["eps"])
    torch._foreach_clamp_min_(s, torch.finfo(s[0].dtype).tiny)
    return list(s)


def _move(rows: list[AdaptiveRow], keep: Any, length: Any) -> None:
    step = torch._foreach_div([row.state["M"] for row in rows], _noise_scales(rows))
    mean = [row.mean for row in rows]
    if rows[0].alive is not None:
        for row, x, *numbers in zip(rows, step, keep, length, strict=True):
            eager.shift(row, x, *numbers)
        return
    torch._foreach_mul_(mean, _each(keep, mean[0]))
    torch._foreach_mul_(step, _each(length, mean[0]))
    torch._foreach_sub_(mean, step)
    for row in rows:
        if row.mean.dtype != row.param.dtype:
            row.param.copy_(row.mean)


def _each(numbers: Any, like: Tensor) -> Any:
    """As ``_foreach`` takes a number for each tensor."""
    return list(numbers.to(like).unbind()) if isinstance(numbers, Tensor) else numbers.tolist()
