"""One step of :class:`arturo.AdaArturo`: observe every parameter, one multiplier for all, move every parameter.

On accelerators there is no host read in it: sums stay on the device, which never waits. On the host they are NumPy's
numbers, since some forty tensor operations on a handful of them would cost more than a small network's passes. What depends
on the number of a step (gains, whose basis is refreshed) is known on the host, or under ``capturable`` computed on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from arturo import kronecker, sharding
from arturo.adaptive_state import grid_of, least_size, most_size
from arturo.kernels import native
from arturo.kernels.adaptive.choice import kernels
from arturo.kernels.adaptive.row import AdaptiveRow, Layout
from arturo.kernels.batch import sum_dtype
from arturo.kronecker import Tiling
from arturo.surrogates import learned

PER_LR = 20.0  # tau / lr: weights with a root mean square of 0.05 move by about lr
MOST_LR = 3e-3  # that counts for the length of a step: at tau = 0.2 most networks with ReLUs die within a few coherent steps
ROUNDING = 1e-10  # of A and N, sums in float64, which are equal at a first step
SHARE_EXPONENT = 0.1875  # gamma of arturo.surrogates.learned.reach


Layouts = dict[Tensor, Layout]


def row_of(
    group: Mapping[str, Any],
    p: Tensor,
    state: Mapping[str, Tensor],
    number: int,
    shards: sharding.Shards | None,
    layouts: Layouts,
) -> AdaptiveRow:
    """One parameter with a gradient as the step sees it: local, real, at least one-dimensional."""
    grad, counted, first, t, alive = p.grad, True, 0, next_step(group, state), None
    assert grad is not None
    layout = layouts.get(p)
    if layout is None or not layout.fits(group, p, state):
        layout = layouts[p] = layout_of(group, p, state)
    grid = layout.grid
    if shards is not None:
        counted, starts = shards.piece(p, rounded=grid is not None or group["state_dtype"] is not None)
        first = starts[0]
        p, grad, state = shards.local(p, grad, state)
    if p.is_complex():
        p, grad = (torch.view_as_real(x.resolve_conj()) for x in (p, grad))
    if p.dim() == 0:  # 0-d float32 would take on the float64 of the sums
        p, grad = p.unsqueeze(0), grad.unsqueeze(0)
        state = {name: x.unsqueeze(0) if name in ("M", "r", "start", "mean") else x for name, x in state.items()}
    if group["capturable"] and isinstance(group["lr"], Tensor):
        alive = group["lr"].reshape(()).to(p.device) > 0
    gain = (learned.filter_gain if isinstance(t, Tensor) else _host_gain)(group["betas"][0], t)
    return AdaptiveRow(p, grad, state.get("mean", p), state, group, grid, number, first, counted, t, gain, layout, alive)


def layout_of(group: Mapping[str, Any], p: Tensor, state: Mapping[str, Tensor]) -> Layout:
    grid = grid_of(group, p)
    check_layout(p, state, grid)
    return Layout(group, p, state, grid, least_size(p), most_size(p))


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
    return step.to(sum_dtype(step.device)) + 1 if group["capturable"] else int(step) + 1


_host_gain = functools.lru_cache(maxsize=64)(learned.filter_gain)  # mostly the same for all parameters

Vector = Any  # of numbers: a NumPy array, or a tensor
Members = Sequence[tuple[Tensor, Mapping[str, Any]]]  # all parameters of the optimizer, in order, each with its group


def take_step(
    rows: Sequence[AdaptiveRow], info: Tensor, curvature: Any, memory: float, shards: sharding.Shards | None, members: Members
) -> tuple[bool, Any]:
    """Step all rows and write what happened to ``info``. Returns whether entries are known to be missing, and the curvature.

    ``curvature`` is what :func:`arturo.surrogates.learned.follow_curvature` keeps, and what
    :func:`~arturo.surrogates.learned.follow_level` does: five floats on the host, else a tensor, which changes in place.
    ``memory`` is the weight of the newest innovation in the former.
    """
    if not (info.is_cpu and type(info) is Tensor and all([row.on_host for row in rows])):
        known = curvature.to(info) if isinstance(curvature, Tensor) else info.new_tensor(curvature)
        outcome, bends = _step(rows, info, known.unbind(), memory, shards, members)
        torch.stack([x.to(info.dtype) for x in outcome], out=info)
        known.copy_(torch.stack(bends))
        return info.is_cpu and not any(row.group["capturable"] for row in rows) and bool(info[-1] > 0), known
    numbers, past = info.numpy(), curvature.tolist() if isinstance(curvature, Tensor) else curvature
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers[:], bends = _step(rows, numbers, tuple(map(np.float64, past)), memory, shards, members)
    return bool(numbers[-1] > 0), tuple(map(float, bends))


def _step(
    rows: Sequence[AdaptiveRow],
    info: Vector,
    past: Sequence[Any],
    memory: float,
    shards: sharding.Shards | None,
    members: Members,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What :class:`arturo.StepInfo` says, and the curvature after it; ``past`` is that before it.

    ``info`` tells where vectors live: NumPy's on the host, tensors on a device and over shards.
    """
    passes = kernels(rows)
    rows = [row for kernel in passes for row in kernel.rows]
    numbers = Numbers.of(rows, info)
    # Innovation and noise, in the basis of each tile:  E = G - M;  r += w (E^2 / (1 + P-) - r)
    sums = [kernel.observe() for kernel in passes]
    # Filter:  M += K trust(z^2) E;  per tensor sigma, its size;  over all tensors B = sum sigma s, A = sum sigma M^2 / s,
    # N = sum sigma s K / (2 - K)
    at = region(rows, numbers, sums, info, shards, members)
    # One multiplier for all tensors:  k = phi^gamma sqrt(B / max(A, N)),  phi = 1 - N / A
    k, phi, part = learned.reach(at.B, at.A, at.N, SHARE_EXPONENT)
    xp = learned.namespace(k)
    where = xp.where
    seen = at.skipped < at.entries  # where everything is missing nothing moves
    # One curvature:  zeta = sum E d / sum (s / sigma) d^2  with the last step d;  as far as the loss falls:  k <= 2 / zeta
    bends = learned.follow_curvature(past[:3], at.fell, at.pulled, memory)
    bends = tuple(where(seen, new, old) for new, old in zip(bends, past, strict=False))
    most = learned.furthest(*bends)
    # Where noise has all but vanished, shorter steps:  k <- k min(1, 10 now / level)
    now = where(at.room > 0, at.B / at.room, 0.0)
    level = tuple(where(seen, *pair) for pair in zip(learned.follow_level(past[3], past[4], now), past[3:], strict=True))
    calm = learned.calm(level[0], now)
    free, k = (k <= most) & (calm >= 1), where(seen, calm * xp.minimum(k, most), 0.0)
    # mu <- keep mu - tau sigma k Q_L (M / s) Q_R^T
    spent = where(k > 0, k * k * at.A / at.B, 0.0)
    keep = 1 - where(seen, 1.0, 0.0) * numbers.lr * numbers.decay
    step_lr = numbers.lr.clip(None, MOST_LR)
    anchors = learned.anchor(PER_LR * step_lr, spent, phi, numbers.gain, at.stir)
    keep = learned.namespace(keep).where(numbers.anchored > 0, keep * anchors, keep)
    draw_in(rows, anchors)
    length, gain = PER_LR * k * step_lr * at.sigma, numbers.gain * at.trust
    first = 0
    for kernel in passes:
        here = slice(first, first := first + len(kernel.rows))
        kernel.move(keep[here], length[here], gain[here])
    count(rows)
    bound = 0.5 * PER_LR * at.lr * part * at.B
    kl = 0.5 * PER_LR / at.lr * k * k * at.weighted_A
    active = (k > 0) & free & (at.A >= (1 - ROUNDING) * at.N)
    outcome = where(k > 0, 1 / k, 0.0), kl, bound, at.entries > 0, active, at.skipped
    return outcome, (*bends, where(at.entries > 0, k, past[2]), *level)


def draw_in(rows: Sequence[AdaptiveRow], anchors: Vector) -> None:
    """Vectors towards their start: mu <- start + anchor (mu - start). Matrices shrink as they move."""
    for i, row in enumerate(rows):
        if row.start is None:
            continue
        if not isinstance(anchors, Tensor):
            row.mean.lerp_(row.start, 1 - float(anchors[i]))
            continue
        drawn = torch.lerp(row.mean, row.start, (1 - anchors[i]).to(row.mean))
        row.mean.copy_(drawn if row.alive is None else torch.where(row.alive, drawn, row.mean))


class Numbers(NamedTuple):
    """What is known of the rows before the step, a vector of each."""

    lr: Vector
    decay: Vector
    gain: Vector
    share: Vector  # of a squared innovation that is noise
    least: Vector  # size
    most: Vector  # size
    entries: Vector
    anchored: Vector  # 1, of a vector 0
    turned: Vector  # 1, on the diagonal 0

    @classmethod
    def of(cls, rows: Sequence[AdaptiveRow], info: Vector) -> Numbers:
        lines = [
            (row.group["lr"], row.group["weight_decay"], row.gain, row.share, row.layout.least, row.layout.most,
             row.mean.numel(), row.start is None, row.grid is not None)
            for row in rows
        ]  # fmt: skip
        return cls(*columns(lines, info, len(cls._fields)))


class Region(NamedTuple):
    """The sums behind the trust region, over all processes: numbers, but for ``sigma``, ``trust`` and ``stir``."""

    sigma: Vector  # size of each row's tensor
    trust: Vector  # in each row's innovation
    stir: Vector  # how much of what noise would do each row's gradient does, at most 1
    B: Any
    A: Any
    N: Any
    weighted_A: Any  # A with each tensor's part times lr^2
    fell: Any  # for learned.follow_curvature
    pulled: Any
    lr: Any  # the largest
    skipped: Any
    entries: Any
    room: Any  # sizes of all weights, added up


def region(
    rows: Sequence[AdaptiveRow],
    numbers: Numbers,
    sums: Sequence[Tensor],
    info: Vector,
    shards: sharding.Shards | None,
    members: Members,
) -> Region:
    """Sizes and sums: one small table, added up over all processes in one reduction."""
    xp = learned.namespace(info)
    stack: Any = torch.stack if xp is torch else np.array  # np.stack takes thrice as long
    squares, S, MM, ME, EE, missing, pull = joined(sums, info).T
    pulled, fell = MM, ME
    # Everything that is added up, such that A and z^2 follow from sums:  A = MM + 2 w K ME + (w K)^2 EE,  z^2 = share EE / S
    if any([row.grid is not None for row in rows]):  # whose tiles have their own w: A is known
        on_diagonal = 1 - numbers.turned
        MM, ME, EE = on_diagonal * MM + pull, on_diagonal * ME, on_diagonal * EE
    N, ME, kept, noise = S * learned.noise_level(numbers.gain), numbers.gain * ME, numbers.gain**2 * EE, numbers.share * EE
    table = stack([squares, S, N, MM, ME, kept, noise, missing, numbers.entries, pulled, fell, numbers.least,
                   numbers.most, numbers.lr])  # fmt: skip
    if any([row.alive is not None for row in rows]):
        alive = torch.stack([info.new_ones((), dtype=torch.bool) if x is None else x for x in (row.alive for row in rows)])
        table = torch.where(alive, table, 0.0)
    places = [row.number for row in rows]
    order: Sequence[int] | None = None  # where each row is in the table
    if shards is not None:  # a column for each parameter, whether or not this process has something of it
        whole: Any = np.zeros((11, len(members))) if xp is np else info.new_zeros(11, len(members))
        for i, row in enumerate(rows):
            if row.counted:
                whole[:, row.number] = table[:11, i]
        whole = shards.total(torch.from_numpy(whole)).numpy() if xp is np else shards.total(whole)
        known = columns([(least_size(p), most_size(p), group["lr"]) for p, group in members], info, 3)
        table, order = xp.concatenate([whole, known]), places
    elif places != (ordered := sorted(places)):  # sums must not depend on which kernel took which row
        place_of = {place: i for i, place in enumerate(ordered)}
        order = [place_of[place] for place in places]
        back = sorted(range(len(rows)), key=places.__getitem__)
        table = table[:, back] if xp is np else torch.stack([table[:, i] for i in back], 1)
    squares, S, N, MM, ME, kept, noise, skipped, entries, pulled, fell, least, most, each_lr = table
    trust = learned.trust(xp.where(S > 0, noise / S, 0.0))
    A = MM + trust * (2 * ME + trust * kept)
    stir = xp.where(N > 0, learned.FALL * A / xp.where(N > 0, N, 1.0), 0.0).clip(0.0, 1.0)
    sigma = xp.minimum(xp.maximum(xp.sqrt(squares / entries.clip(1.0)), least), most)
    each_lr = xp.where(entries > 0, each_lr, 0.0).clip(None, MOST_LR)
    lr = each_lr.max()
    lr = learned.namespace(lr).where(lr > 0, lr, 1.0)  # nothing takes part: of no consequence
    u = each_lr / lr
    terms = stack([S, A, N, A * each_lr * each_lr, u * fell, u * u * pulled, entries])
    B, A, N, weighted, fell, pulled, room = (terms * sigma).sum(1)
    if order is not None:
        pick: Any = (lambda x: x[order]) if xp is np else lambda x: torch.stack([x[i] for i in order]) if rows else x[:0]
        sigma, trust, stir = pick(sigma), pick(trust), pick(stir)
    return Region(sigma, trust, stir, B, A, N, weighted, fell, pulled, lr, skipped.sum(), entries.sum(), room)


def joined(sums: Sequence[Tensor], info: Vector) -> Vector:
    """The kernels' sums, one under the other."""
    if isinstance(info, Tensor):
        return torch.cat([x.to(info) for x in sums]) if sums else info.new_zeros(0, 7)
    return np.concatenate([x.numpy() for x in sums]) if sums else np.zeros((0, 7))


def count(rows: Sequence[AdaptiveRow]) -> None:
    """One more step in every row's state."""
    steps = [row.state["step"] for row in rows if row.alive is None]
    if steps and not native.count_steps(steps):
        torch._foreach_add_(steps, 1)
    for row in rows:
        if row.alive is not None:
            row.state["step"].add_(row.alive.to(row.state["step"]))


def columns(lines: Sequence[Sequence[Any]], like: Vector, count: int) -> Vector:
    """Lines of ``count`` numbers, 0-d tensors among them, as a table with a row for each column of theirs.

    On a device numbers are filled in, not copied, which a graph cannot capture; equal ones of a column at once.
    """
    if not isinstance(like, Tensor):
        return np.fromiter(map(float, chain.from_iterable(lines)), like.dtype, count * len(lines)).reshape(-1, count).T
    if not lines:
        return like.new_zeros(count, 0)
    return torch.stack([_column(values, like) for values in zip(*lines, strict=True)])


def _column(values: Sequence[Any], like: Tensor) -> Tensor:
    first = values[0]
    if not isinstance(first, Tensor) and all(not isinstance(x, Tensor) and x == first for x in values):
        return like.new_full((len(values),), float(first))
    return torch.stack([x.to(like).reshape(()) if isinstance(x, Tensor) else like.new_full((), float(x)) for x in values])
