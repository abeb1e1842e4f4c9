"""One step of :class:`arturo.AdaArturo`: observe every parameter, one multiplier for all, move every parameter.

On accelerators there is no host read in it: sums stay on the device, which never waits. What depends on the number of a step
(gains, whose basis is refreshed) is known on the host, or under ``capturable`` computed on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo import sharding
from arturo.adaptive_state import grid_of, least_size
from arturo.kernels.adaptive.choice import kernels
from arturo.kernels.adaptive.row import Row
from arturo.kernels.batch import sum_dtype
from arturo.surrogates import learned

PER_LR = 20.0  # tau / lr: weights with a root mean square of 0.05 move by about lr
SHARE_EXPONENT = 0.25  # gamma of arturo.surrogates.learned.reach


def row_of(
    group: Mapping[str, Any], p: Tensor, state: Mapping[str, Tensor], number: int, shards: sharding.Shards | None
) -> Row:
    """One parameter with a gradient as the step sees it: local, real, at least one-dimensional."""
    grad, counted, first, grid, t, alive = p.grad, True, 0, grid_of(group, p), next_step(group, state), None
    assert grad is not None
    if shards is not None:
        counted, starts = shards.piece(p, rounded=grid is not None)
        first = starts[0]
        p, grad, state = shards.local(p, grad, state)
    if p.is_complex():
        p, grad = (torch.view_as_real(x.resolve_conj()) for x in (p, grad))
    if p.dim() == 0:  # 0-d float32 would take on the float64 of the sums
        p, grad = p.unsqueeze(0), grad.unsqueeze(0)
        state = {name: x.unsqueeze(0) if name in ("M", "r", "start", "mean") else x for name, x in state.items()}
    if group["capturable"] and isinstance(group["lr"], Tensor):
        alive = group["lr"].reshape(()).to(p.device) > 0
    gain = learned.filter_gain(group["betas"][0], t)
    return Row(p, grad, state.get("mean", p), state, group, grid, number, first, counted, t, gain, alive)


def next_step(group: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """The number of the next step, from 1; under capturable on the device and in float64, as gains are differences from 1."""
    step = state["step"]
    return step.to(sum_dtype(step.device)) + 1 if group["capturable"] else int(step) + 1


Members = Sequence[tuple[Tensor, Mapping[str, Any]]]  # all parameters of the optimizer, in order, each with its group


def take_step(rows: Sequence[Row], info: Tensor, shards: sharding.Shards | None, members: Members) -> None:
    """Step all rows and write what happened to ``info``."""
    passes = kernels(rows)
    rows = [row for kernel in passes for row in kernel.rows]
    # Filter and noise, in the basis of each tile:  M += K (G - M);  r += w (E^2 / (1 + P-) - r)
    sums = [kernel.observe().to(info) for kernel in passes]
    # Per tensor sigma, its size;  over all tensors B = sum sigma s, A = sum sigma M^2 / s, N = sum sigma s K / (2 - K)
    at = region(rows, sums, info, shards, members)
    # One multiplier for all tensors:  k = phi^gamma sqrt(B / max(A, N)),  phi = 1 - N / A
    k, phi, part = learned.reach(at.B, at.A, at.N, SHARE_EXPONENT)
    seen = at.skipped < at.entries  # where everything is missing nothing moves
    k = torch.where(seen, k, 0.0)
    spent = torch.where(k > 0, k * k * at.A / at.B, 0.0)
    # mu <- keep mu - tau sigma k Q_L (M / s) Q_R^T
    if rows:
        keep, length = factors(rows, at.sigma, k, torch.where(seen, spent, 0.0), phi, seen, info)
        counts = [len(kernel.rows) for kernel in passes]
        for kernel, *numbers in zip(passes, keep.split(counts), length.split(counts), strict=True):
            kernel.move(*numbers)
        count(rows)
    bound = 0.5 * PER_LR * at.lr * part * at.B
    kl = 0.5 * PER_LR / at.lr * k * k * at.weighted_A
    eta = torch.where(k > 0, 1 / k, 0.0)
    active = (k > 0) & (at.A >= at.N)
    info.copy_(torch.stack([x.to(info.dtype) for x in (eta, kl, bound, at.entries > 0, active, at.skipped)]))


class Region(NamedTuple):
    """The sums behind the trust region, over all processes; 0-d tensors but for ``sigma``."""

    sigma: Tensor  # size of each row's tensor
    B: Tensor
    A: Tensor
    N: Tensor
    weighted_A: Tensor  # A with each tensor's part times lr^2
    lr: Tensor  # the largest
    skipped: Tensor
    entries: Tensor


def region(
    rows: Sequence[Row], sums: Sequence[Tensor], info: Tensor, shards: sharding.Shards | None, members: Members
) -> Region:
    """Sizes and sums: one small table, added up over all processes in one reduction."""
    table, places = _lines(rows, sums, info), [row.number for row in rows]
    order = sorted(range(len(rows)), key=places.__getitem__)  # sums must not depend on which kernel took which row
    if shards is None and order != list(range(len(rows))):
        table = torch.stack([table[i] for i in order])
    owners = [members[places[i]] for i in order]
    if shards is not None:  # a line for each parameter, whether or not this process has something of it
        whole = info.new_zeros(len(members), 7)
        for i, row in enumerate(rows):
            if row.counted:
                whole[row.number] = table[i]
        table, owners = shards.total(whole), list(members)
    squares, S, A, N, weighted, skipped, entries = table.unbind(1)
    sigma = torch.maximum((squares / entries.clamp(min=1)).sqrt(), column([least_size(p) for p, _ in owners], info))
    lr = torch.where(entries > 0, column([group["lr"] for _, group in owners], info), 0.0).max()
    lr = torch.where(lr > 0, lr, 1.0)  # nothing takes part: of no consequence
    B, A, N, weighted = (torch.stack((S, A, N, weighted)) * sigma).sum(1).unbind()
    if shards is not None or order != list(range(len(rows))):
        at = places if shards is not None else sorted(range(len(rows)), key=order.__getitem__)
        sigma = torch.stack([sigma[i] for i in at]) if rows else sigma[:0]
    return Region(sigma, B, A, N, weighted, lr, skipped.sum(), entries.sum())


def _lines(rows: Sequence[Row], sums: Sequence[Tensor], info: Tensor) -> Tensor:
    """Squares, S, A, N, A lr^2, missing entries, entries: a line per row."""
    if not rows:
        return info.new_zeros(0, 7)
    squares, S, A, missing = (sums[0] if len(sums) == 1 else torch.cat(list(sums))).unbind(1)
    lr = column([row.group["lr"] for row in rows], info)
    level = column([learned.noise_level(row.gain) for row in rows], info)
    entries = column([row.mean.numel() for row in rows], info)
    table = torch.stack([squares, S, A, S * level, A * lr * lr, missing, entries], 1)
    if all(row.alive is None for row in rows):
        return table
    alive = torch.stack([info.new_ones((), dtype=torch.bool) if x is None else x for x in (row.alive for row in rows)])
    return torch.where(alive.unsqueeze(1), table, 0.0)


def factors(
    rows: Sequence[Row], sigma: Tensor, k: Tensor, spent: Tensor, phi: Tensor, seen: Tensor, info: Tensor
) -> tuple[Tensor, Tensor]:
    """What each row's mean is multiplied by, decay and anchor, and the length of its step in units of M / s."""
    lr = column([row.group["lr"] for row in rows], info)
    decay = column([row.group["weight_decay"] for row in rows], info)
    anchored = column([row.start is None for row in rows], info)  # vectors are not
    keep = torch.where(seen, 1 - lr * decay, 1.0)
    pull = learned.anchor(PER_LR * lr, spent, phi, column([row.gain for row in rows], info))
    return torch.where(anchored > 0, keep * pull, keep), PER_LR * lr * sigma * k


def count(rows: Sequence[Row]) -> None:
    """One more step in every row's state."""
    steps = [row.state["step"] for row in rows if row.alive is None]
    if steps:
        torch._foreach_add_(steps, 1)
    for row in rows:
        if row.alive is not None:
            row.state["step"].add_(row.alive.to(row.state["step"]))


def column(values: Sequence[Any], like: Tensor) -> Tensor:
    """Numbers, or 0-d tensors among them, as a vector. On the device they are filled in: a graph cannot capture a copy."""
    first = values[0] if values else 0.0
    if not isinstance(first, Tensor) and all(x is first or x == first for x in values):
        return like.new_full((len(values),), float(first))
    if like.device.type == "cpu" and type(like) is Tensor and not any(isinstance(x, Tensor) for x in values):
        return torch.tensor([float(x) for x in values], dtype=like.dtype)
    return torch.stack([x.to(like).reshape(()) if isinstance(x, Tensor) else like.new_full((), float(x)) for x in values])
