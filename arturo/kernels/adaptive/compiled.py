"""The passes as generated code, one dynamic-shape kernel each, for devices that Inductor knows and hosts without the extension.

As in :mod:`arturo.kernels.compiled`: numbers come in tensors, so that nothing compiles twice but for another dtype. What it
cannot take (a single entry, layouts that differ between a parameter, its gradient and its state) goes to the eager loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from arturo.kernels import compiled, native
from arturo.kernels.adaptive import Moves, eager
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.kernels.batch import sum_dtype
from arturo.kernels.eager import follow_parameter
from arturo.surrogates import learned


class Compiled:
    def __init__(self, rows: Sequence[AdaptiveRow]) -> None:
        self.rows = rows
        self.flat = [_flat(row) for row in rows]  # None: the eager loop's

    def observe(self) -> Tensor:
        found = []
        for row, flat in zip(self.rows, self.flat, strict=True):
            if flat is None:
                found.append(eager.observe(row))
                continue
            numbers = row.gain, row.share, row.weight, row.group["eps"], *_sign_and_limit(row)
            if row.mean.dtype != row.param.dtype:
                follow_parameter(row.mean, row.param, row.alive)
            found.append(_run(_observe, *flat, row.alive, *_numbers(row, numbers)))
        return eager.joined(found)

    def move(self, moves: Moves) -> None:
        for row, flat, *numbers in zip(self.rows, self.flat, *moves, strict=True):
            if flat is None:
                eager.move(row, Moves(*numbers))
                continue
            _run(_move, *flat, row.alive, *_numbers(row, (row.group["eps"], *_sign_and_limit(row), *numbers)))
            if row.mean.dtype != row.param.dtype:
                row.param.copy_(row.mean)


def _flat(row: AdaptiveRow) -> tuple[Tensor | None, ...] | None:
    """Gradient, mean, M, r and start as vectors; None where they do not lie alike."""
    tensors = [row.mean, row.grad, row.state["M"], row.state["r"], *(() if row.start is None else (row.start,))]
    if not compiled._alike([row.param, *tensors]):
        return None
    mean, grad, M, r, *start = (compiled._flat(x) for x in tensors)
    return grad, mean, M, r, start[0] if start else None


def _sign_and_limit(row: AdaptiveRow) -> tuple[float, float]:
    return -1.0 if row.group["maximize"] else 1.0, row.limit


def _numbers(row: AdaptiveRow, values: Sequence[Any]) -> list[Tensor]:
    device = row.mean.device
    return [compiled._number(x, device, sum_dtype(device)).to(device) for x in values]


def _observe(
    grad: Tensor, mean: Tensor, M: Tensor, r: Tensor, start: Tensor | None, alive: Tensor | None,
    gain: Tensor, share: Tensor, weight: Tensor, eps: Tensor, sign: Tensor, limit: Tensor,
) -> Tensor:  # fmt: skip
    E, seen, missing = _innovation(grad, M, alive, sign, limit)
    newest = E.square() * share
    interpolated = torch.where(weight < 0.5, r + weight * (newest - r), newest - (newest - r) * (1 - weight))
    new_r = torch.where(seen, torch.maximum(interpolated, learned.least_noise(M + gain * E, learned.SURE_APART)), r)
    s, dtype = _scale(new_r, eps), sum_dtype(mean.device)
    away = mean if start is None else mean - start
    r.copy_(new_r)
    terms = away.square(), s, M / s * M, M / s * E, E / s * E
    return torch.stack([*(x.sum(dtype=dtype) for x in terms), missing.to(dtype), missing.new_zeros((), dtype=dtype)])


def _innovation(grad: Tensor, M: Tensor, alive: Tensor | None, sign: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g = sign * grad.to(M.dtype)
    seen = g.abs() <= limit  # False for NaN too
    missing = seen.numel() - seen.sum()
    seen = seen if alive is None else seen & alive
    return torch.where(seen, g - M, 0.0), seen, missing


def _move(
    grad: Tensor, mean: Tensor, M: Tensor, r: Tensor, start: Tensor | None, alive: Tensor | None,
    eps: Tensor, sign: Tensor, limit: Tensor, keep: Tensor, pull: Tensor, length: Tensor, gain: Tensor,
) -> None:  # fmt: skip
    new_M = M + gain * _innovation(grad, M, alive, sign, limit)[0]
    step = new_M / _scale(r, eps)
    step = step if alive is None else torch.where(alive, step, 0.0)
    M.copy_(new_M)
    away = mean if start is None else mean - start
    mean.copy_((mean - torch.where(step != 0, pull * away, 0.0)) * keep - step * length)


def _scale(r: Tensor, eps: Tensor) -> Tensor:
    s = r.sqrt() + eps
    return s.clamp(min=learned.least_scale(s.dtype))


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return compiled._compiled(function)(*arguments)
    except Exception as error:  # a compiler's errors have no common base
        raise RuntimeError(
            f"fused=True: torch.compile could not make or run the kernel ({type(error).__name__}; the C++ extension is "
            f"{'built' if native.available() else 'not built'}). Use fused=None for the best there is"
        ) from error
