"""The few numbers that a step works with besides its tensors, on the host or on a device.

:class:`HostNumbers` are floats: the dual may branch on them, so that a step takes the fewest passes over memory. For tensors
whose sums are cheap to read. :class:`DeviceNumbers` are 0-d tensors: no host read, no branch on data, for accelerators,
``capturable=True`` and ``torch.compile``. Where nothing may happen there (lr = 0 in a tensor, nothing observed) every write is
masked and leaves the bits unchanged.

Both know the other processes, if there are any: :meth:`total` adds up over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arturo import loss_scale
from arturo.core.dual import DualSolution
from arturo.core.trust_region import Scalar
from arturo.kernels import DeviceSweep, Sweep
from arturo.kernels.batch import Row
from arturo.kernels.choice import device_sweep, host_sweep
from arturo.sharding import Shards

if TYPE_CHECKING:
    from arturo.rows import Batch
    from arturo.step import Part

CPU = torch.device("cpu")


class HostNumbers:
    """Floats."""

    sweep: Callable[..., Sweep] = staticmethod(host_sweep)

    def __init__(self, shards: Shards | None) -> None:
        self.shards = shards

    def taken(self, steps: Sequence[Tensor]) -> Sequence[Any]:
        """Steps that parameters have taken, in one read."""
        taken: list[float] = torch.stack(list(steps)).tolist() if steps else []
        return taken

    def lr(self, lr: Scalar) -> Scalar:
        """An lr that a schedule's rounding left below 0 counts as 0."""
        value = float(lr)
        return value if value > 0 else 0.0

    def number(self, x: Any) -> float:
        """One of these numbers."""
        return float(x)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return x if condition else y

    def factor(self, e: Any, bound: Any) -> Any:
        """f = sqrt(e / B)."""
        return math.sqrt(e / bound)

    def largest(self, values: Sequence[Any]) -> tuple[Any, Any]:
        """The largest of the groups' bounds; and the same as something to divide by."""
        largest = float(max(values))
        return largest, largest

    def last_eta(self, rows: Sequence[Row]) -> tuple[Any, Any]:
        """1 and the multiplier of the first parameter that has taken a step, or 0 and 0."""
        for row in rows:
            if not row.first:
                return 1.0, float(row.eta)
        return 0.0, 0.0

    def mean_eta(self, count: Any, eta: Any) -> Any:
        """The mean over the processes that have one, mostly the same on all; inf if none does."""
        return eta / count if count else math.inf

    def scale_sums(self, batches: Sequence[Batch], live: Sequence[Batch], lrs: Sequence[Scalar]) -> tuple[Any, ...]:
        """Sum of squares and count of this step's gradients, 1 if some state has the unit of the loss, and that unit."""
        known = next((value for batch in batches for scale in batch.scales if (value := float(scale)) > 0), 0.0)
        if known:
            return 0.0, 0.0, 1.0, known
        squares, count = loss_scale.gradient_sums([row for batch in live for row in batch.rows], CPU).tolist()
        return squares, count, 0.0, 0.0

    def unit(self, squares: Any, count: Any, known: Any, scale: Any, step: Callable[[], Scalar]) -> tuple[Any, Any]:
        """The unit of the loss (:mod:`arturo.loss_scale`), 0 while undecided; and the same as something to divide by."""
        if known:
            return scale / known, scale / known
        sums = torch.tensor([squares, count], dtype=torch.float64, device=CPU)
        unit = loss_scale.unit(sums[0], sums[1], step()).item()
        return unit, unit or 1.0

    def settle(self, batch: Batch, lr: Scalar, unit: Any, known: Any) -> None:
        """Write the unit down where there is none; ``known`` is 0 where this process did not have it."""
        if not known or any([row.first for row in batch.rows]):
            for scale in batch.scales:
                scale.fill_(scale.item() or unit)

    def total(self, values: Sequence[Any]) -> Sequence[Any]:
        """Sums over all processes: the same bits on each."""
        return values if self.shards is None else self.shards.totals(values)

    def units(self, eta: Any, may_be_limit: bool = False) -> tuple[Any, Any, Any]:
        """``w``, ``s_w`` and ``eta_w`` of :mod:`arturo.core.trust_region`; eta = inf is the limit."""
        if math.isinf(eta):
            return 1.0, 0.0, 1.0
        w = max(1.0, eta)
        return w, 1 / w, eta / w

    def sums(self, tables: list[Tensor], columns: int) -> Sequence[Any]:
        """The columns' sums over all lines of all tables, correctly rounded; over all processes, too."""
        lines = torch.cat(tables).tolist() if tables else []
        sums = [math.fsum(column) for column in zip(*lines, strict=True)] if lines else [0.0] * columns
        return sums if self.shards is None else self.total(sums)

    def masked(self, table: Tensor, alive: Tensor | None) -> Tensor:
        """What a sweep's sums count for."""
        return table

    def move(self, part: Part, s_w: Any, eta_w: Any, solution: DualSolution, moving: Any) -> Tensor:
        """The group's part of the step, and one step more in its parameters' state. Returns ``S_0`` of the whole step."""
        sums: Tensor = part.sweep.move(s_w, eta_w, part.factor)
        part.sweep.count(solution.eta)
        return sums

    def taken_sum(self, parts: list[tuple[Part, Tensor]]) -> Any:
        """The sum of f^2 ``S_0`` over all groups and processes."""
        s_0 = math.fsum([part.factor * part.factor * x for part, sums in parts for x in sums.tolist()])
        return s_0 if self.shards is None else self.total([s_0])[0]

    def report(self, solution: DualSolution, kl: Any, bound: Any, previous: Any, moving: Any, missing: Any) -> list[Any]:
        """The fields of :class:`arturo.StepInfo`."""
        return [solution.eta, kl, bound, solution.evaluations, solution.active, missing]


class DeviceNumbers:
    """0-d tensors beside ``like``, in its dtype."""

    sweep: Callable[..., DeviceSweep] = staticmethod(device_sweep)

    def __init__(self, shards: Shards | None, like: Tensor) -> None:
        self.shards, self.like = shards, like

    def taken(self, steps: Sequence[Tensor]) -> Sequence[Any]:
        return steps

    def lr(self, lr: Scalar) -> Scalar:
        if not isinstance(lr, Tensor):
            return lr if lr > 0 else 0.0
        lr = lr.reshape(()).to(device=self.like.device, dtype=self.like.dtype)
        return torch.where(lr > 0, lr, 0.0)

    def number(self, x: Any) -> Tensor:
        """A host number is filled in: a copy from the host could not be captured in a graph."""
        return x.to(self.like.device) if isinstance(x, Tensor) else self.like.new_full((), float(x))

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return torch.where(condition, x, y)

    def factor(self, e: Any, bound: Any) -> Any:
        return torch.sqrt(self.number(e) / bound)

    def largest(self, values: Sequence[Any]) -> tuple[Any, Any]:
        largest = torch.stack([self.number(x) for x in values]).amax()
        return largest, torch.where(largest > 0, largest, 1.0)

    def last_eta(self, rows: Sequence[Row]) -> tuple[Any, Any]:
        if not rows:
            return self.like.new_zeros(()), self.like.new_zeros(())
        began = torch.stack([row.step.to(self.like.device) for row in rows]) > 0
        etas = torch.stack([row.eta.to(self.like.device) for row in rows]).to(self.like.dtype)
        return began.any().to(self.like.dtype), began.any() * _first(etas, began)

    def mean_eta(self, count: Any, eta: Any) -> Any:
        return torch.where(count > 0, eta / count.clamp(min=1), math.inf)

    def scale_sums(self, batches: Sequence[Batch], live: Sequence[Batch], lrs: Sequence[Scalar]) -> tuple[Any, ...]:
        scales = [scale.to(self.like.device) for batch in batches for scale in batch.scales]
        known = self.like.new_zeros(())
        if scales:
            values = torch.stack(scales).to(self.like.dtype)
            known = _first(values, values > 0)
        sums = [loss_scale.gradient_sums(batch.rows, self.like.device) for batch in live]
        sums = [x if not isinstance(lr, Tensor) else torch.where(lr > 0, x, 0.0) for x, lr in zip(sums, lrs, strict=True)]
        squares, count = torch.stack(sums).sum(0).unbind()
        return squares, count, (known > 0).to(known.dtype), known

    def unit(self, squares: Any, count: Any, known: Any, scale: Any, step: Callable[[], Scalar]) -> tuple[Any, Any]:
        unit = torch.where(known > 0, scale / known.clamp(min=1), loss_scale.unit(squares, count, step()))
        return unit, torch.where(unit > 0, unit, 1.0)

    def settle(self, batch: Batch, lr: Scalar, unit: Any, known: Any) -> None:
        for scale in batch.scales:
            keep = scale > 0 if not isinstance(lr, Tensor) else (scale > 0) | (lr <= 0).to(scale.device)
            scale.unsqueeze(0).copy_(torch.where(keep, scale, unit.to(device=scale.device, dtype=scale.dtype)))

    def total(self, values: Sequence[Any]) -> Sequence[Any]:
        if self.shards is None:
            return values
        return self.shards.total(torch.stack([self.number(x) for x in values])).unbind()

    def units(self, eta: Any, may_be_limit: bool = False) -> tuple[Any, Any, Any]:
        w = eta.clamp(min=1)
        if not may_be_limit:  # eta = inf can only be the trial of a first step
            return w, 1 / w, eta / w
        at_limit = eta.isinf()
        w = torch.where(at_limit, 1.0, w)
        return w, torch.where(at_limit, 0.0, 1 / w), torch.where(at_limit, 1.0, eta / w)

    def sums(self, tables: list[Tensor], columns: int) -> Sequence[Any]:
        """One line after the other: cumsum, unlike sum, gives the same bits however the lines are grouped."""
        if not tables:
            return self.total(self.like.new_zeros(columns).unbind())
        return self.total(torch.cat(tables).cumsum(0)[-1].unbind())

    def masked(self, table: Tensor, alive: Tensor | None) -> Tensor:
        table = table.to(self.like.device)
        return table if alive is None else torch.where(alive, table, 0.0)

    def move(self, part: Part, s_w: Any, eta_w: Any, solution: DualSolution, moving: Any) -> Tensor:
        moving = moving if part.alive is None else moving & part.alive
        sums: Tensor = part.sweep.move(s_w, eta_w, solution.scale * part.factor, moving)
        part.sweep.count(solution.eta, moving)
        return sums

    def taken_sum(self, parts: list[tuple[Part, Tensor]]) -> Any:
        tables = [(part.factor * part.factor * self.masked(sums, part.alive)).unsqueeze(1) for part, sums in parts]
        return self.sums(tables, 1)[0]

    def report(self, solution: DualSolution, kl: Any, bound: Any, previous: Any, moving: Any, missing: Any) -> list[Any]:
        eta = torch.where(moving, solution.eta, torch.where(previous.isinf(), 0.0, previous))
        evaluations = torch.where(bound > 0, float(solution.evaluations), 0.0)
        return [eta, torch.where(moving, kl, 0.0), bound, evaluations, moving & (eta > 0), missing]


Numbers = HostNumbers | DeviceNumbers


def _first(values: Tensor, chosen: Tensor) -> Tensor:
    """The first of the chosen values, without a host read: ``values[index]`` would read the index."""
    return values.gather(0, chosen.int().argmax(0, keepdim=True)).squeeze(0)
