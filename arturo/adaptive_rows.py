"""What takes part in a step of :class:`arturo.AdaArturo`: one record per parameter with a gradient."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arturo import kronecker, sharding
from arturo.adaptive_state import grid_of, least_size
from arturo.kernels.adaptive.row import AdaptiveRow, Layout
from arturo.kernels.batch import sum_dtype
from arturo.kronecker import Tiling
from arturo.state import check_gradient, follow_dtype
from arturo.surrogates import learned

Layouts = dict[int, Layout]  # by the parameter's id, which its layout keeps alive: hashing a tensor takes longer


def row_of(
    group: Mapping[str, Any],
    p: Tensor,
    own: dict[str, Tensor],
    number: int,
    shards: sharding.Shards | None,
    layouts: Layouts,
) -> AdaptiveRow:
    """One parameter with a gradient as the step sees it: local, real, at least one-dimensional."""
    state: Mapping[str, Tensor] = own
    grad, counted, first, t, alive = p.grad, True, 0, next_step(group, own), None
    assert grad is not None
    check_gradient(p, grad)
    layout = layouts.get(id(p))
    if layout is None or not layout.fits(group, p, own, number):
        layout = layouts[id(p)] = layout_of(group, p, own, number)
    grid = layout.grid
    if shards is not None:
        counted, starts = shards.piece(p, rounded=grid is not None or group["state_dtype"] is not None)
        first = starts[0]
        p, grad, state = shards.local(p, grad, state)
    if layout.unusual:
        p, grad, state = as_vectors(p, grad, state)
    if "start" in state and (isinstance(t, Tensor) or t == 1):
        begin(p, state["start"], t)
    if group["capturable"] and isinstance(group["lr"], Tensor):
        alive = group["lr"].reshape(()).to(p.device) > 0
    gain = (learned.filter_gain if isinstance(t, Tensor) else _host_gain)(group["betas"][0], t)
    return AdaptiveRow(p, grad, state.get("mean", p), state, group, grid, number, first, counted, t, gain, layout, alive)


def begin(p: Tensor, start: Tensor, t: Any) -> None:
    """A vector starts where its first step does: its state may be older, made at lr = 0 before weights were loaded."""
    start.copy_(p if isinstance(t, int) else torch.where(t == 1, p.to(start.dtype), start))


def as_vectors(p: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Complex numbers as pairs of reals, a single number as a vector: 0-d float32 would take on the float64 of the sums."""
    if p.is_complex():
        p, grad = (torch.view_as_real(x.resolve_conj()) for x in (p, grad))
    if p.dim() == 0:
        p, grad = p.unsqueeze(0), grad.unsqueeze(0)
        state = {name: x.unsqueeze(0) if name in ("M", "r", "start", "mean") else x for name, x in state.items()}
    return p, grad, state


def layout_of(group: Mapping[str, Any], p: Tensor, state: dict[str, Tensor], number: int) -> Layout:
    follow_dtype(p, state)
    grid = grid_of(group, p)
    check_layout(p, state, grid)
    return Layout(group, p, state, number, grid, least_size(p))


def check_layout(p: Tensor, state: Mapping[str, Tensor], grid: Tiling | None) -> None:
    """State that does not fit would be read as something else, or beyond its end."""
    M, asked = state["M"], dict(kronecker.sides(grid))
    known = {name: state["Q_" + name].shape[-1] for name in ("L", "R") if "Q_" + name in state}
    if known != asked or M.shape != (p.shape if not p.is_complex() else (*p.shape, 2)):
        raise RuntimeError(
            f"the state of a parameter of shape {tuple(p.shape)} was made for shape {tuple(M.shape)} and bases of sides "
            f"{known or 'none'}, but its shape, block and covariance ask for {asked or 'none'}: these must not change after "
            "the first step; to begin anew, delete optimizer.state[p]"
        )


def next_step(group: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """The number of the next step, from 1; under capturable on the device and in float64, as gains are differences from 1."""
    step = state["step"]
    return step.to(sum_dtype(step.device)) + 1 if group["capturable"] else int(step.item()) + 1


_host_gain = functools.lru_cache(maxsize=64)(learned.filter_gain)  # mostly the same for all parameters
