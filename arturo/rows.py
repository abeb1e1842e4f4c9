"""What takes part in a step: one record per parameter with a gradient, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo.core import rounding
from arturo.kernels.batch import Row
from arturo.numbers import Numbers
from arturo.sharding import Piece
from arturo.state import buffer_dtype
from arturo.surrogates import BY_NAME, Surrogate
from arturo.surrogates.kalman import FACTORED

WHOLE = Piece(True, (0,))


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
    groups: Sequence[Mapping[str, Any]],
    state: Mapping[Tensor, dict[str, Any]],
    numbers: Numbers,
    diagonals: Mapping[Tensor, Tensor],
) -> list[Batch]:
    """The rows of all groups; every parameter with a gradient has state. ``diagonals`` are of the Hessian, by parameter."""
    entries: list[list[tuple[int, Tensor, dict[str, Any]]]] = []
    start = 0
    for group in groups:
        entries.append([(i, p, state[p]) for i, p in enumerate(group["params"], start) if p.grad is not None])
        start += len(group["params"])
    taken = iter(numbers.taken([entry["step"] for own in entries for _, _, entry in own]))
    batches = []
    for group, own in zip(groups, entries, strict=True):
        surrogate = BY_NAME[group["surrogate"]]
        rows = [row_of(surrogate, p, entry, next(taken), i, numbers, diagonals) for i, p, entry in own]
        scales: list[Tensor] = []
        if group["initial_curvature"] is None:
            known = [entry for _, _, entry in own]
            if len(own) < len(group["params"]):
                known = [state[p] for p in group["params"] if p in state]
            scales = [entry["scale"] for entry in known if "scale" in entry]
        batches.append(Batch(group, rows, scales))
    return batches


def row_of(
    surrogate: Surrogate,
    p: Tensor,
    state: Mapping[str, Any],
    taken: Any,
    number: int,
    numbers: Numbers,
    diagonals: Mapping[Tensor, Tensor],
) -> Row:
    """One parameter, or this process's shard of it.

    Args:
        taken: steps it has taken so far, a float or a 0-d tensor.
        number: its place among all parameters of the optimizer.
    """
    grad, piece, diagonal = p.grad, WHOLE, diagonals.get(p) if diagonals else None
    rounded = state["prec"].dtype == torch.bfloat16
    surrogate = FACTORED if rounded else surrogate
    assert grad is not None
    if numbers.shards is not None:
        piece = numbers.shards.piece(p, rounded)
        p, grad, state = numbers.shards.local(p, grad, state)
    row = Row(
        p,
        grad,
        state.get("mean", p),
        state["prec"],
        state["a"],
        state["b"],
        tuple([state[name] for name in surrogate.buffers]),
        surrogate,
        state["step"],
        state["eta"],
        first=taken == 0,
        seed=rounding.seed(_integer(taken), number) if rounded else 0,
        starts=piece.starts,
        counted=piece.counted,
        diagonal=None if diagonal is None else _as_real(diagonal).to(dtype=buffer_dtype(p), device=p.device),
    )
    return row.as_vector() if p.is_complex() or p.dim() == 0 else row


def _as_real(h: Tensor) -> Tensor:
    return torch.view_as_real(h.resolve_conj()) if h.is_complex() else h


def _integer(step: Any) -> Any:
    return step.to(torch.int64) if isinstance(step, Tensor) else int(step)
