"""A step whose dual is solved on the host: the fewest passes over memory, for tensors whose sums are cheap to read.

``observe`` (filter update and constraint at a trial eta), the dual (a ``probe`` only where one is needed), ``move``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from arturo import dual
from arturo.kernels import Kernel, native
from arturo.step import SMALLEST_SHARE, Slot, StepInfo, bounds
from arturo.trust_region import Scalar, constraint


def host_step(slots: list[Slot], kernel_of: Callable[[Slot], Kernel]) -> StepInfo:
    """Step all slots; ``kernel_of`` names the kernel for one."""
    given = [float(slot.group["lr"]) for slot in slots]
    lrs: list[Scalar] = [lr if lr > 0 else 0.0 for lr in given]  # a schedule that ends at 0 may round below it
    live = [(slot, lr, e) for slot, lr, e in zip(slots, lrs, bounds(slots, lrs), strict=True) if slot.param and e > 0]
    if not live:
        kept = next((eta.item() for slot in slots for eta in slot.eta), 0.0)
        return StepInfo(kept, 0.0, 0.0, 0, False, 0)
    bound = float(max(e for _, _, e in live))
    rule, fixed = slots[0].group["dual"], slots[0].group["eta"]  # global: the first group speaks for all

    batches, previous, size = [], None, 0
    for slot, lr, e in live:
        steps = torch.stack(slot.step).tolist()
        if previous is None:
            previous = next((eta.item() for eta, step in zip(slot.eta, steps, strict=True) if step > 0), None)
        share = e / bound if e / bound >= SMALLEST_SHARE else 0.0
        kernel = kernel_of(slot)
        batches.append((kernel, kernel.prepare(slot.batch(lr, e, steps)), share))
        size += sum(p.numel() for p in slot.param)

    missing = 0

    def evaluate(eta: float, name: str = "probe") -> dual.Evaluation:
        nonlocal missing
        rows, shares, w = [], [], max(1.0, eta)
        for kernel, batch, share in batches:
            s_w, eta_w = (0.0, 1.0) if share == 0 or math.isinf(eta) else (share / w, eta / w)
            found = getattr(kernel, name)(batch, s_w, eta_w)
            rows.append(found)
            shares += [share] * len(found)
        table = torch.cat(rows).tolist()
        if name == "observe":
            missing = int(sum(row[3] for row in table))
        s_0, s_1, s_2 = (math.fsum(s * row[i] for s, row in zip(shares, table, strict=True)) for i in range(3))
        C, dC, ddC = constraint(1.0, 1.0 if math.isinf(eta) else w, s_0, s_1, s_2)
        return dual.Evaluation(eta, C, dC, ddC)

    first_eta = dual.first_trial(rule, previous, fixed)
    at = evaluate(first_eta, "observe")
    if missing == size:  # nothing was seen anywhere: nothing moves
        return StepInfo(previous or 0.0, 0.0, bound, 1, False, missing)
    solution = dual.solve(rule, previous, fixed, at, bound, evaluate)

    eta, kl, w = solution.eta, [], max(1.0, solution.eta)
    for kernel, batch, share in batches:
        s_w, eta_w = (0.0, 1.0) if share == 0 else (share / w, eta / w)
        kl += [share * s_0 / (2 * w * w) for s_0 in kernel.move(batch, s_w, eta_w, 1.0).tolist()]
    for slot, _, _ in live:
        native.count(slot.step, slot.eta, eta)
    return StepInfo(eta, math.fsum(kl), bound, solution.evaluations, solution.active, missing)
