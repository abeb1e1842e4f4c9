"""What takes part in a step: one record per parameter with a gradient, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo import rounding
from arturo.kernels.batch import Row
from arturo.numbers import Numbers
from arturo.sharding import Piece
from arturo.state import buffer_dtype
from arturo.surrogates import surrogate_of


class Batch(NamedTuple):
    """One parameter group in one step."""

    group: Mapping[str, Any]
    rows: list[Row]
    scales: list[Tensor]  # arturo.loss_scale: of every parameter of the group with state, also without a gradient now

    @property
    def size(self) -> int:
        """Real numbers that take part, those that another process counts left out."""
        return sum([row.param.numel() for row in self.rows if row.counted])


def batches_of(
    groups: Iterable[Mapping[str, Any]],
    state: Mapping[Tensor, dict[str, Any]],
    numbers: Numbers,
    diagonals: Mapping[Tensor, Tensor],
) -> list[Batch]:
    """The rows of all groups; every parameter with a gradient has state. ``diagonals`` are of the Hessian, by parameter."""
    members = [(group, p) for group in groups for p in group["params"]]
    taken = iter(numbers.taken([state[p]["step"] for _, p in members if p.grad is not None]))
    batches, number = [], 0
    for group in groups:
        rows, scales, relative = [], [], group["initial_curvature"] is None
        for p in group["params"]:
            if p.grad is not None:
                rows.append(row_of(group, p, state[p], next(taken), number, numbers, diagonals.get(p)))
            if relative and p in state and "scale" in state[p]:
                scales.append(state[p]["scale"])
            number += 1
        batches.append(Batch(group, rows, scales))
    return batches


def row_of(
    group: Mapping[str, Any],
    p: Tensor,
    state: Mapping[str, Any],
    taken: Any,
    number: int,
    numbers: Numbers,
    diagonal: Tensor | None,
) -> Row:
    """One parameter, or this process's shard of it.

    Args:
        taken: steps it has taken so far, a float or a 0-d tensor.
        number: its place among all parameters of the optimizer.
        diagonal: of the Hessian.
    """
    surrogate, grad = surrogate_of(group["surrogate"], state), p.grad
    piece = Piece(True, (0,))
    rounded = state["prec"].dtype == torch.bfloat16
    assert grad is not None
    if numbers.shards is not None:
        piece = numbers.shards.piece(p, rounded)
        p, grad, state = numbers.shards.local(p, grad, state)
    row = Row(
        param=p,
        grad=grad,
        mean=state.get("mean", p),
        prec=state["prec"],
        a=state["a"],
        b=state["b"],
        memory=tuple([state[name] for name in surrogate.buffers]),
        surrogate=surrogate,
        step=state["step"],
        eta=state["eta"],
        first=taken == 0,
        seed=rounding.seed(_integer(taken), number) if rounded else 0,
        starts=piece.starts,
        counted=piece.counted,
        diagonal=None if diagonal is None else _as_real(diagonal).to(dtype=buffer_dtype(p), device=p.device),
    )
    return row.as_vector()


def _as_real(h: Tensor) -> Tensor:
    return torch.view_as_real(h.resolve_conj()) if h.is_complex() else h


def _integer(step: Any) -> Any:
    return step.to(torch.int64) if isinstance(step, Tensor) else int(step)
