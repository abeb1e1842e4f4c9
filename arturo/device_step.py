"""A step without a host read or a branch on data: for accelerators, ``capturable=True`` and ``torch.compile``.

The same passes as :mod:`arturo.host_step`, with every number of the dual a 0-d tensor. The dual takes a fixed count of
evaluations, the last at the final eta, and ``move`` scales the step by min(1, sqrt(B / C)): the bound holds all the same.
Where nothing may happen (lr = 0 in a tensor, nothing seen) every write is masked and leaves the bits as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from arturo import dual, loss_scale
from arturo.kernels import Kernel
from arturo.sharding import Shards
from arturo.step import Slot, bounds, weight_count
from arturo.trust_region import Scalar, constraint


def device_step(slots: list[Slot], kernel_of: Callable[[Slot], Kernel], info: Tensor, shards: Shards | None = None) -> None:
    """Step all slots and write eta, kl, bound, evaluations, active, skipped into ``info``; ``shards`` add up over processes."""
    device, dtype = info.device, info.dtype
    live = [slot for slot in slots if (slot.param or shards is not None) and not _is_zero(slot.group["lr"])]
    if not live:
        kept = [eta for slot in slots for eta in slot.eta][:1]
        info.zero_()
        info[:1].copy_(torch.stack(kept) if kept else info[:1])
        return
    lrs = [_lr(slot.group["lr"], device, dtype) for slot in live]
    previous, fresh = _previous(live, info)
    sizes: list[Scalar] = [slot.size for slot in live]
    there: list[Tensor] = []
    relative = loss_scale.is_relative([slot.group for slot in slots])
    scale_sums = _scale_sums(slots, live, lrs, info) if relative else info.new_zeros(4)
    if shards is not None:
        sizes, there, previous, fresh, scale_sums = _agree(shards, live, previous, fresh, scale_sums)
    step = loss_scale.typical_step([slot.group for slot in slots], weight_count(sizes, lrs))
    found, unit = _unit(scale_sums, step) if relative else (previous, 1.0)
    each = [torch.as_tensor(e, device=device, dtype=dtype) for e in bounds(live, lrs, sizes)]
    if there:  # a group without a gradient anywhere has no say
        each = [torch.where(anywhere > 0, e, 0.0) for e, anywhere in zip(each, there, strict=True)]
    largest = torch.stack(each).amax()
    bound = torch.where(largest > 0, largest, 1.0)
    rule, fixed = slots[0].group["dual"], slots[0].group["eta"]  # global: the first group speaks for all

    batches, size = [], torch.zeros((), device=device, dtype=dtype)
    for slot, lr, e, n in zip(live, lrs, each, sizes, strict=True):
        kernel, factor = kernel_of(slot), torch.sqrt(e / bound)  # f_g: half the lr is half the step
        for batch, counted in slot.batches(lr, slot.step, unit):
            batches.append((kernel, kernel.prepare(batch), factor, batch.alive, counted))
        size = size + n * (lr > 0)

    missing = torch.zeros((), device=device, dtype=dtype)

    def evaluate(eta: Tensor, limit: Tensor | None = None, observe: bool = False) -> tuple[Tensor, Tensor]:
        """C and C' at eta; where ``limit`` is set, the limit of eta^2 C instead."""
        nonlocal missing
        w = eta.clamp(min=1)
        if limit is not None:
            w = torch.where(limit, 1.0, w)
        tables: list[Tensor] = []
        s_w, eta_w = _units(eta, w, limit)
        for kernel, batch, _, alive, counted in batches:
            rows = (kernel.observe if observe else kernel.probe)(batch, s_w, eta_w)
            if not counted:
                continue
            table = rows.to(device)
            tables.append(table[:, :3] if alive is None else torch.where(alive, table[:, :3], 0.0))
            if observe:
                count = table[:, 3].sum()
                missing = missing + (count if alive is None else count * alive)
        sums = _sum_in_order(tables) if tables else info.new_zeros(3)
        if shards is not None:
            sums = shards.total(torch.cat([sums, missing.unsqueeze(0)]) if observe else sums)
            missing = sums[3] if observe else missing
        C, dC, _ = constraint(w, sums[0], sums[1], sums[2])
        return C, dC

    scale = torch.ones_like(bound)
    evaluations = 1
    if fixed is not None:
        eta = torch.full_like(bound, fixed)
        C, _ = evaluate(eta, observe=True)
    elif rule == "bisection":
        eta, evaluations = dual.bisection_fixed(previous, fresh, bound, lambda eta, observe: evaluate(eta, None, observe)[0])
        C = eta
    else:
        C, dC = evaluate(previous, limit=fresh, observe=True)
        start = torch.where(fresh, torch.sqrt(C / bound), dual.newton_update_fixed(previous, C, dC, bound))
        eta, C = dual.newton_fixed(start, evaluate, bound)
        scale = torch.where(bound < C, torch.sqrt(bound / C), scale)
        evaluations += dual.DEVICE_UPDATES

    moving = (largest > 0) & (missing < size) & C.isfinite()
    parts: list[Tensor] = []
    w = eta.clamp(min=1)
    for kernel, batch, factor, alive, counted in batches:
        rows = kernel.move(batch, *_units(eta, w, None), scale * factor, moving if alive is None else moving & alive)
        if counted:
            rows = rows.to(device) if alive is None else torch.where(alive, rows.to(device), 0.0)
            parts.append(factor * factor * rows)
    for slot, lr in zip(live, lrs, strict=True):
        for state in slot.scale:
            keep = state > 0 if not isinstance(lr, Tensor) else (state > 0) | (lr <= 0).to(state.device)
            state.unsqueeze(0).copy_(torch.where(keep, state, found.to(device=state.device, dtype=state.dtype)))
        moves = moving & (lr > 0) if isinstance(lr, Tensor) else moving
        for step, state in zip(slot.step, slot.eta, strict=True):
            step.add_(moves.to(step.dtype))
            new = torch.where(moves.to(state.device), eta.to(state.device), state)
            state.unsqueeze(0).copy_(new)  # torch.compile loses what is written to a 0-d float64 input itself
    kl = (_sum_in_order(parts) if parts else torch.zeros_like(w)) / (2 * w * w)
    if shards is not None:
        kl = shards.total(kl)
    eta = torch.where(moving, eta, previous)
    kl = torch.where(moving, kl * scale * scale, 0.0)
    count = torch.where(largest > 0, float(evaluations), 0.0)
    info.copy_(torch.stack([eta, kl, largest, count, (moving & (eta > 0)).to(dtype), missing]))


def _previous(slots: list[Slot], info: Tensor) -> tuple[Tensor, Tensor]:
    """The multiplier of the last step, that of the first parameter that has taken one; and whether none has."""
    if not any(slot.step for slot in slots):
        return info.new_zeros(()), info.new_ones((), dtype=torch.bool)
    began = torch.stack([step.to(info.device) for slot in slots for step in slot.step]) > 0
    etas = torch.stack([eta.to(info.device) for slot in slots for eta in slot.eta])
    previous = etas.gather(0, began.int().argmax(0, keepdim=True)).squeeze(0)  # etas[index] would read the index
    return previous.to(info.dtype), ~began.any()


def _scale_sums(slots: list[Slot], live: list[Slot], lrs: list[Scalar], info: Tensor) -> Tensor:
    """For :func:`_unit`: sum of squares and count of this step's gradients, whether the unit is known, and what it is."""
    known = loss_scale.known_on_device(slots, info[0])
    rows = [loss_scale.gradient_sums([slot], info.device) for slot in live]
    rows = [row if not isinstance(lr, Tensor) else torch.where(lr > 0, row, 0.0) for row, lr in zip(rows, lrs, strict=True)]
    return torch.cat([torch.stack(rows).sum(0), torch.stack([(known > 0).to(known.dtype), known])])


def _unit(sums: Tensor, step: Scalar) -> tuple[Tensor, Tensor]:
    """The unit of the loss (:mod:`arturo.loss_scale`), 0 as long as it is open; and what to divide by."""
    squares, count, known, scale = sums.unbind()
    found = torch.where(known > 0, scale / known.clamp(min=1), loss_scale.unit(squares, count, step))
    return found, torch.where(found > 0, found, 1.0)


def _agree(
    shards: Shards, slots: list[Slot], previous: Tensor, fresh: Tensor, scale_sums: Tensor
) -> tuple[list[Scalar], list[Tensor], Tensor, Tensor, Tensor]:
    """Weights and parameters that take part anywhere, the mean of the multipliers that processes know, whether none does."""
    counts = [*(slot.size for slot in slots), *(len(slot.param) for slot in slots)]
    known = (~fresh).to(previous.dtype)
    filled = [torch.full_like(previous, float(count)) for count in counts]  # a copy from the host could not be captured
    total = shards.total(torch.cat([torch.stack([*filled, known, known * previous]), scale_sums]))
    *numbers, known, eta = total[:-4].unbind()
    sizes, there = numbers[: len(slots)], numbers[len(slots) :]
    return [*sizes], there, torch.where(known > 0, eta / known.clamp(min=1), 0.0), known == 0, total[-4:]


def _sum_in_order(tables: list[Tensor]) -> Tensor:
    """The sum over all rows, one after the other: cumsum, unlike sum, gives the same bits however the rows are grouped."""
    return torch.cat(tables).cumsum(0)[-1]


def _is_zero(lr: Scalar) -> bool:
    return not isinstance(lr, Tensor) and not lr > 0


def _lr(lr: Scalar, device: torch.device, dtype: torch.dtype) -> Scalar:
    """As a 0-d tensor of the dual's dtype; what a schedule's rounding left below 0 is 0."""
    if not isinstance(lr, Tensor):
        return lr
    lr = lr.reshape(()).to(device=device, dtype=dtype)
    return torch.where(lr > 0, lr, 0.0)


def _units(eta: Tensor, w: Tensor, limit: Tensor | None) -> tuple[Tensor, Tensor]:
    """``s_w, eta_w`` of :mod:`arturo.trust_region`; (0, 1) in the limit."""
    if limit is None:
        return 1 / w, eta / w
    return torch.where(limit, 0.0, 1 / w), torch.where(limit, 1.0, eta / w)
