"""One step of :class:`arturo.AdaArturo`: observe every parameter, one multiplier for all, move every parameter.

On accelerators there is no host read in it: sums stay on the device, which never waits. On the host C++ takes them from there
(:func:`settle_natively`), since some hundred tensor operations on a handful of numbers would cost more than a small network's
passes. What depends on the number of a step (gains, whose basis is refreshed) is known on the host, or under ``capturable``
computed on the device.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arturo import adaptive_state, sharding
from arturo.adaptive_state import least_size
from arturo.kernels import native
from arturo.kernels.adaptive import Moves
from arturo.kernels.adaptive.choice import kernels
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.surrogates import learned

PER_LR = 20.0  # tau / lr: weights with a root mean square of 0.05 move by about lr
MOST_LR = 3e-3  # that counts for the length of a step: at tau = 0.2 most networks with ReLUs die within a few coherent steps
ROUNDING = 1e-10  # of A and N, sums in float64, which are equal at a first step
SHARE_EXPONENT = 0.1875  # gamma of arturo.surrogates.learned.reach

Members = Sequence[tuple[Tensor, Mapping[str, Any]]]  # all parameters of the optimizer, in order, each with its group


def take_step(
    rows: Sequence[AdaptiveRow], info: Tensor, curvature: Any, memory: float, shards: sharding.Shards | None, members: Members
) -> tuple[list[float] | None, Any]:
    """Step all rows and write what happened to ``info``. Returns the same if the host knows it, and the curvature.

    ``curvature`` is what :func:`arturo.surrogates.learned.follow_curvature` and :func:`~arturo.surrogates.learned.follow_level`
    keep, and a mark of the parameters that took part: six floats on the host, else a tensor, which changes in place.
    ``memory`` is the weight of the newest innovation in the curvature.
    """
    passes = kernels(rows)
    rows = [row for kernel in passes for row in kernel.rows]
    # Innovation and noise, in the basis of each tile:  E = G - M;  r += w (E^2 / (1 + P-) - r)
    sums = [kernel.observe() for kernel in passes]
    # One multiplier for all tensors, and with it  keep,  length = tau sigma k,  gain = K trust(z^2)  of each
    taking_part = ((row.mean, row.group) for row in rows) if shards is None else members  # these all processes know
    on_host = info.is_cpu and type(info) is Tensor and are_on_host(taking_part)
    if on_host and native.available():
        moves, curvature = settle_natively(rows, sums, info, curvature, memory, shards, members)
    else:
        known = curvature.to(info) if isinstance(curvature, Tensor) else info.new_tensor(curvature)
        moves = settle(rows, sums, info, known, memory, shards, members)
        curvature = tuple(known.tolist()) if on_host else known
    # M += gain E;  step = Q_L (M / s) Q_R^T;  mu <- keep (mu - pull (mu - start)) - length step, pulled where it moves
    first = 0
    for kernel in passes:
        here = slice(first, first := first + len(kernel.rows))
        kernel.move(moves if len(passes) == 1 else Moves(*[numbers[here] for numbers in moves]))
    count(rows)
    return info.tolist() if on_host else None, curvature


def are_on_host(members: Iterable[tuple[Tensor, Mapping[str, Any]]]) -> bool:
    """Whether all numbers of a step of these are the host's."""
    known = None
    for p, group in members:
        if group is not known:
            known = group
            if group["capturable"] or (isinstance(group["lr"], Tensor) and not group["lr"].is_cpu):
                return False
        if not p.is_cpu:
            return False
    return True


def constants(memory: float) -> array[float]:
    """struct StepConstants of cpp/settle.h."""
    of_the_model = learned.FREEDOM, learned.FALL, learned.MOST_PULL, learned.LEAST_SHARE, learned.WINDOW
    return array("d", (PER_LR, MOST_LR, adaptive_state.MOST_SIZE, SHARE_EXPONENT, ROUNDING, *of_the_model, memory))


def settle_natively(
    rows: Sequence[AdaptiveRow],
    sums: Sequence[Tensor],
    info: Tensor,
    curvature: Any,
    memory: float,
    shards: sharding.Shards | None,
    members: Members,
) -> tuple[Moves, tuple[float, ...]]:
    """:func:`settle` for numbers of the host, in C++. Writes ``info``, and returns the curvature as well."""
    count, library, columns = len(rows), native.library(), None
    numbers = lines_of(rows)
    all_sums = None if not sums else sums[0] if len(sums) == 1 else torch.cat(list(sums))
    if shards is None:
        parameters = max([row.number for row in rows]) + 1
    else:  # a column for each parameter, whether or not this process has something of it
        parameters = len(members)
        columns = torch.zeros(parameters, 13, dtype=torch.float64, device="cpu")  # struct Column of cpp/settle.h
        library.arturo_columns(count, numbers, address(all_sums), address(columns))
        known_to_all = [(least_size(p), float(group["lr"])) for p, group in members]
        columns = torch.cat([shards.total(columns[:, :11].contiguous()), columns.new_tensor(known_to_all)], 1)
    fixed, moves = constants(memory), [array("d", bytes(8 * count)) for _ in Moves._fields]
    known = array("d", curvature.tolist() if isinstance(curvature, Tensor) else curvature)
    library.arturo_settle(parameters, address(columns), count, numbers, *map(address, (all_sums, fixed, known, info, *moves)))
    return Moves(*moves), tuple(known)


_pack_line, _pack_numbers = struct.Struct("=4d").pack, struct.Struct("=4d").pack  # struct StepRow of cpp/settle.h
_counted = {flag: struct.pack("=d", flag) for flag in (False, True)}  # its field between the two


def lines_of(rows: Sequence[AdaptiveRow]) -> bytes:
    """What C++ gets of each row: what stays is kept with its layout, the rest is the same for most rows."""
    pieces: list[bytes] = []
    group, t, of_group = None, None, b""
    for row in rows:
        layout = row.layout
        if row.group is not group or row.t != t:
            group, t = row.group, row.t
            of_group = _pack_numbers(group["lr"], group["weight_decay"], row.gain, row.share)
        if layout.line is None:
            place, entries = row.number + 1, row.mean.numel()
            layout.line = _pack_line(layout.least, place, entries, row.grid is not None)
        pieces += layout.line, _counted[row.counted], of_group
    return b"".join(pieces)


def address(x: Tensor | array[float] | None) -> int | None:
    """Of the numbers of a tensor or an array, which must live longer than the call."""
    return None if x is None else x.data_ptr() if isinstance(x, Tensor) else x.buffer_info()[0]


def settle(
    rows: Sequence[AdaptiveRow],
    sums: Sequence[Tensor],
    info: Tensor,
    known: Tensor,
    memory: float,
    shards: sharding.Shards | None,
    members: Members,
) -> Moves:
    """One multiplier for all tensors. Writes what :class:`arturo.StepInfo` says to ``info``, and the curvature to ``known``."""
    where, past, numbers = torch.where, known.unbind(), Numbers.of(rows, info)
    # Filter:  M += K trust(z^2) E;  per tensor sigma, its size;  over all tensors B = sum sigma s, A = sum sigma M^2 / s,
    # N = sum sigma s K / (2 - K)
    at = region(rows, numbers, sums, info, shards, members)
    # k = phi^gamma sqrt(B / max(A, N)),  phi = 1 - N / A
    k, phi, part = learned.reach(at.B, at.A, at.N, SHARE_EXPONENT)
    # Where everything is missing nothing moves, nor where weights or state are not finite
    seen = (at.skipped < at.entries) & ~(torch.isnan(at.A) | torch.isnan(at.B))
    # One curvature:  zeta = sum E d / sum (s / sigma) d^2  with the last step d;  as far as the loss falls:  k <= 2 / zeta
    followed = learned.follow_curvature(past[:3], at.fell, at.pulled, memory)
    bends = [where(seen, new, old) for new, old in zip(followed, past, strict=False)]
    most = learned.furthest(*bends)
    # Where noise has all but vanished, shorter steps:  k <- k min(1, 10 now / level)
    now = where(at.room > 0, at.B / at.room, 0.0)
    steps = where(at.mark == past[5], past[4], 0.0)  # a level belongs to the parameters that it is of
    following = (*learned.follow_level(past[3], steps, now), at.mark)
    level = [where(seen, *pair) for pair in zip(following, past[3:], strict=True)]
    calm = learned.calm(level[0], now)
    free, k = (k <= most) & (calm >= 1), where(seen, calm * torch.minimum(k, most), 0.0)
    spent = where(k > 0, k * k * at.A / at.B, 0.0)
    keep = 1 - where(seen, 1.0, 0.0) * numbers.lr * numbers.decay
    tau = PER_LR * numbers.lr.clamp(max=MOST_LR)
    pull = where(spent > 0, at.part * (1 - learned.anchor(tau, spent, phi, numbers.gain, at.stir)), 0.0)
    bound = 0.5 * PER_LR * at.lr * part * at.B
    kl = 0.5 * PER_LR / at.lr * k * k * at.weighted_A
    active = (k > 0) & free & (at.A >= (1 - ROUNDING) * at.N)
    outcome = where(k > 0, 1 / k, 0.0), kl, bound, at.entries > 0, active, at.skipped
    last = where(at.entries > 0, k, past[2])
    torch.stack([x.to(info.dtype) for x in outcome], out=info)
    known.copy_(torch.stack([*bends, last, *level]))
    return Moves(keep, pull, where(k > 0, tau * k * at.sigma, 0.0), numbers.gain * at.trust)


class Numbers(NamedTuple):
    """What is known of the rows before the step, a vector of each."""

    lr: Tensor
    decay: Tensor
    gain: Tensor
    share: Tensor  # of a squared innovation that is noise
    least: Tensor  # size
    place: Tensor  # among all parameters, from 1
    entries: Tensor
    turned: Tensor  # 1, on the diagonal 0

    @classmethod
    def of(cls, rows: Sequence[AdaptiveRow], like: Tensor) -> Numbers:
        lines = []
        for row in rows:
            of_step = row.group["lr"], row.group["weight_decay"], row.gain, row.share
            lines.append((*of_step, row.layout.least, row.number + 1, row.mean.numel(), row.grid is not None))
        return cls(*columns(lines, like, len(cls._fields)))


class Region(NamedTuple):
    """The sums behind the trust region, over all processes: numbers, but for the first four."""

    sigma: Tensor  # size of each row's tensor
    part: Tensor  # sigma over the tensor's own size where that is above MOST_SIZE, else 1
    trust: Tensor  # in each row's innovation
    stir: Tensor  # how much of what noise would do each row's gradient does, at most 1
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
    mark: Any  # of the parameters that take part


def region(
    rows: Sequence[AdaptiveRow],
    numbers: Numbers,
    sums: Sequence[Tensor],
    info: Tensor,
    shards: sharding.Shards | None,
    members: Members,
) -> Region:
    """Sizes and sums: one small table, added up over all processes in one reduction."""
    joined = torch.cat([x.to(info) for x in sums]) if sums else info.new_zeros(0, 7)
    squares, S, MM, ME, EE, missing, pull = joined.T
    pulled, fell = MM, ME
    # Everything that is added up, such that A and z^2 follow from sums:  A = MM + 2 w K ME + (w K)^2 EE,  z^2 = share EE / S
    if any([row.grid is not None for row in rows]):  # whose tiles have their own w: A is known
        on_diagonal = 1 - numbers.turned
        MM, ME, EE = on_diagonal * MM + pull, on_diagonal * ME, on_diagonal * EE
    N, ME, kept, noise = S * learned.noise_level(numbers.gain), numbers.gain * ME, numbers.gain**2 * EE, numbers.share * EE
    table = torch.stack([squares, S, N, MM, ME, kept, noise, missing, numbers.entries, pulled, fell, numbers.place,
                         numbers.least, numbers.lr])  # fmt: skip
    if any([row.alive is not None for row in rows]):
        alive = torch.stack([info.new_ones((), dtype=torch.bool) if x is None else x for x in (row.alive for row in rows)])
        table = torch.where(alive, table, 0.0)
    places = [row.number for row in rows]
    order: Sequence[int] | None = None  # where each row is in the table
    if shards is not None:  # a column for each parameter, whether or not this process has something of it
        whole = info.new_zeros(len(members), 11)  # as in settle_natively: processes may differ in who has the extension
        for i, row in enumerate(rows):
            if row.counted:
                whole[row.number] = table[:11, i]
        known = columns([(i, least_size(p), group["lr"]) for i, (p, group) in enumerate(members, 1)], info, 3)
        table, order = torch.cat([shards.total(whole).T, known]), places
    elif places != (ordered := sorted(places)):  # sums must not depend on which kernel took which row
        place_of = {place: i for i, place in enumerate(ordered)}
        order = [place_of[place] for place in places]
        back = sorted(range(len(rows)), key=places.__getitem__)
        table = torch.stack([table[:, i] for i in back], 1)
    squares, S, N, MM, ME, kept, noise, skipped, entries, pulled, fell, place, least, each_lr = table
    trust = learned.trust(torch.where(S > 0, noise / S, 0.0))
    A = MM + trust * (2 * ME + trust * kept)
    stir = torch.where(N > 0, learned.FALL * A / torch.where(N > 0, N, 1.0), 0.0).clamp(0.0, 1.0)
    own = (squares / entries.clamp(min=1.0)).sqrt()
    sigma = torch.maximum(own, least).clamp(max=adaptive_state.MOST_SIZE)
    part = adaptive_state.MOST_SIZE / own.clamp(min=adaptive_state.MOST_SIZE)
    each_lr = torch.where(entries > 0, each_lr, 0.0).clamp(max=MOST_LR)
    lr = each_lr.max()
    lr = torch.where(lr > 0, lr, 1.0)  # nothing takes part: of no consequence
    u = each_lr / lr
    terms = torch.stack([S, A, N, A * each_lr * each_lr, u * fell, u * u * pulled, entries])
    B, A, N, weighted, fell, pulled, room = (terms * sigma).sum(1)
    if order is not None:
        of_rows = (torch.stack([x[i] for i in order]) if rows else x[:0] for x in (sigma, part, trust, stir))
        sigma, part, trust, stir = of_rows
    counts = skipped.sum(), entries.sum(), room, (learned.mark_weight(place) * entries).sum()
    return Region(sigma, part, trust, stir, B, A, N, weighted, fell, pulled, lr, *counts)


def count(rows: Sequence[AdaptiveRow]) -> None:
    """One more step in every row's state."""
    counters = [row.layout.counter for row in rows if row.alive is None]
    if len(counters) == len(rows) and all(counters) and native.available():
        native.count_steps(counters)
        return
    steps = [row.state["step"] for row in rows if row.alive is None]
    if steps:
        torch._foreach_add_(steps, 1)
    for row in rows:
        if row.alive is not None:
            row.state["step"].add_(row.alive.to(row.state["step"]))


def columns(lines: Sequence[Sequence[Any]], like: Tensor, count: int) -> Tensor:
    """Lines of ``count`` numbers, 0-d tensors among them, as a table with a row for each column of theirs.

    On a device numbers are filled in, not copied, which a graph cannot capture; equal ones of a column at once.
    """
    if not lines:
        return like.new_zeros(count, 0)
    return torch.stack([_column(values, like) for values in zip(*lines, strict=True)])


def _column(values: Sequence[Any], like: Tensor) -> Tensor:
    first = values[0]
    if not isinstance(first, Tensor) and all(not isinstance(x, Tensor) and x == first for x in values):
        return like.new_full((len(values),), float(first))
    return torch.stack([x.to(like).reshape(()) if isinstance(x, Tensor) else like.new_full((), float(x)) for x in values])
