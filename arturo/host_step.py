"""A step whose dual is solved on the host: the fewest passes over memory, for tensors whose sums are cheap to read.

``observe`` (filter update and constraint at a trial eta), the dual (a ``probe`` only where one is needed), ``move``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from arturo import dual, loss_scale
from arturo.kernels import Kernel, native
from arturo.sharding import Shards
from arturo.step import Slot, bounds, weight_count
from arturo.step_info import StepInfo
from arturo.trust_region import Scalar, constraint


def host_step(slots: list[Slot], kernel_of: Callable[[Slot], Kernel], shards: Shards | None = None) -> StepInfo:
    """Step all slots; ``kernel_of`` names the kernel for one, ``shards`` add up over processes."""
    given = [float(slot.group["lr"]) for slot in slots]
    lrs: list[Scalar] = [lr if lr > 0 else 0.0 for lr in given]  # a schedule that ends at 0 may round below it
    steps = [torch.stack(slot.step).tolist() if slot.step else [] for slot in slots]
    previous = _previous(slots, lrs, steps)
    sizes, there = [float(slot.size) for slot in slots], [len(slot.param) for slot in slots]
    scale = _Scale(slots, lrs)
    if shards is not None and any(lrs):
        sizes, there, previous = _agree(shards, sizes, there, previous, scale)
    each = zip(slots, lrs, bounds(slots, lrs, sizes), steps, sizes, there, strict=True)
    live = [(slot, lr, e, taken, size) for slot, lr, e, taken, size, any_there in each if any_there and e > 0]
    if not live:
        kept = next((eta.item() for slot in slots for eta in slot.eta), 0.0)
        return StepInfo(kept, 0.0, 0.0, 0, False, 0)
    bound = float(max(e for _, _, e, *_ in live))
    unit = scale.settle(live, loss_scale.typical_step([slot.group for slot in slots], weight_count(sizes, lrs)))
    rule, fixed = slots[0].group["dual"], slots[0].group["eta"]  # global: the first group speaks for all

    batches = []
    for slot, lr, e, taken, _ in live:
        kernel, factor = kernel_of(slot), math.sqrt(e / bound)  # f_g: half the lr is half the step
        batches += [(kernel, kernel.prepare(batch), factor, counted) for batch, counted in slot.batches(lr, taken, unit)]

    missing = 0

    def evaluate(eta: float, name: str = "probe") -> dual.Evaluation:
        nonlocal missing
        rows, w = [], max(1.0, eta)
        s_w, eta_w = (0.0, 1.0) if math.isinf(eta) else (1 / w, eta / w)
        for kernel, batch, _, counted in batches:
            found = getattr(kernel, name)(batch, s_w, eta_w)
            if counted:
                rows.append(found)
        table = torch.cat(rows).tolist() if rows else []
        sums = [math.fsum(row[i] for row in table) for i in range(3)]
        if name == "observe":
            sums.append(sum(row[3] for row in table))
        if shards is not None:
            sums = shards.totals(sums)
        s_0, s_1, s_2, *counts = sums
        missing = int(counts[0]) if counts else missing
        C, dC, ddC = constraint(1.0 if math.isinf(eta) else w, s_0, s_1, s_2)
        return dual.Evaluation(eta, C, dC, ddC)

    first_eta = dual.first_trial(rule, previous, fixed)
    at = evaluate(first_eta, "observe")
    if missing == sum(size for *_, size in live):  # nothing was seen anywhere: nothing moves
        return StepInfo(previous or 0.0, 0.0, bound, 1, False, missing)
    solution = dual.solve(rule, previous, fixed, at, bound, evaluate)

    eta, kl, w = solution.eta, [], max(1.0, solution.eta)
    for kernel, batch, factor, counted in batches:
        rows = kernel.move(batch, 1 / w, eta / w, factor).tolist()
        kl += [factor * factor * s_0 / (2 * w * w) for s_0 in rows if counted]
    for slot, *_ in live:
        if slot.step:
            native.count(slot.step, slot.eta, eta)
    taken_kl = math.fsum(kl) if shards is None else shards.totals([math.fsum(kl)])[0]
    return StepInfo(eta, taken_kl, bound, solution.evaluations, solution.active, missing)


def _previous(slots: list[Slot], lrs: list[Scalar], steps: list[list[float]]) -> float | None:
    """The multiplier of the last step: that of the first parameter that has taken one."""
    for slot, lr, taken in zip(slots, lrs, steps, strict=True):
        for eta, step in zip(slot.eta, taken, strict=True):
            if lr > 0 and step > 0:
                return float(eta)
    return None


class _Scale:
    """The unit of the loss in one step (:mod:`arturo.loss_scale`): known from state, or found from its gradients."""

    def __init__(self, slots: list[Slot], lrs: list[Scalar]) -> None:
        self.relative = loss_scale.is_relative([slot.group for slot in slots])
        self.known = loss_scale.known_on_host(slots) if self.relative else 1.0
        self.fresh = not self.known
        self.sums = [0.0, 0.0]
        if self.fresh:
            taking = [slot for slot, lr in zip(slots, lrs, strict=True) if lr > 0]
            self.sums = loss_scale.gradient_sums(taking, torch.device("cpu")).tolist()

    def settle(self, live: list[tuple[Slot, Scalar, Scalar, list[float], float]], step: Scalar) -> float:
        """The unit, also written down where it is new; 1 as long as it is open."""
        if not self.relative:
            return 1.0
        squares, count = torch.tensor(self.sums, dtype=torch.float64)
        found = self.known or loss_scale.unit(squares, count, step).item()
        for slot, _, _, taken, _ in live:
            if self.fresh or 0.0 in taken:
                for scale in slot.scale:
                    scale.fill_(scale.item() or found)
        return found or 1.0


def _agree(
    shards: Shards, sizes: list[float], there: list[int], previous: float | None, scale: _Scale
) -> tuple[list[float], list[int], float | None]:
    """Weights and parameters that take part anywhere, and the mean of the multipliers the processes know: mostly one."""
    n = len(sizes)
    known, eta = (0.0, 0.0) if previous is None else (1.0, previous)
    of_scale = [*scale.sums, 1.0 if scale.known else 0.0, scale.known]
    total = shards.totals([*sizes, *map(float, there), *of_scale, known, eta])
    scale.sums, scale.known = total[2 * n : 2 * n + 2], total[-3] / total[-4] if total[-4] else 0.0
    return total[:n], [int(x) for x in total[n : 2 * n]], total[-1] / total[-2] if total[-2] else None
