"""One step of :class:`arturo.Arturo`: observe every parameter, one multiplier for all, move every parameter.

:func:`take_step` is the algorithm. :func:`agree` determines what it may do (:class:`Agreement`). :class:`Passes` goes over
memory and owns the sums. Host and device differ in their numbers only (:mod:`arturo.numbers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from arturo import loss_scale
from arturo.core.bounds import bounds, decay
from arturo.core.dual import Dual, DualSolution, Evaluation
from arturo.core.trust_region import Scalar, constraint
from arturo.hyperparameters import ARTURO
from arturo.kernels.batch import Constants, Row
from arturo.numbers import Numbers
from arturo.rows import Batch


def take_step(batches: list[Batch], numbers: Numbers) -> list[Any]:
    """Step all groups. Returns the fields of :class:`arturo.StepInfo`, as ``numbers`` are: floats, or 0-d tensors."""
    agreed = agree(batches, numbers)
    if agreed is None:
        kept = next((row.eta for batch in batches for row in batch.rows), 0.0)
        return [numbers.number(kept), 0.0, 0.0, 0, False, 0]
    passes, bound = Passes(agreed, numbers), agreed.bound
    dual = Dual(batches[0].group["dual"], agreed.fixed, agreed.previous)

    # Fit the model  g = a mu + b:  (a, b) += K (g - a mu - b),  P <- (I - K H) P;  and C, C', C'' at a trial eta
    at = passes.observe(dual.trial)
    if passes.seen is False:  # the host knows that nothing moves; a device masks every write instead
        return [numbers.where(agreed.previous < math.inf, agreed.previous, 0.0), 0.0, bound, 1, False, passes.missing]
    # One multiplier for all weights:  C(eta) = 1/2 sum prec u^2 = bound,  u = num / (A + eta prec)
    solution = dual.solve(at, bound, passes.probe)
    # mu <- mu - f u;  prec <- (A + nu prec) / (rho + nu)
    kl = passes.move(solution)
    return numbers.report(solution, kl, agreed.largest, agreed.previous, passes.moving, passes.missing)


class Member(NamedTuple):
    """One group that takes part."""

    batch: Batch
    lr: Scalar
    factor: Any  # f_g = sqrt(e_g / B): half the lr is half the step


class Agreement(NamedTuple):
    """What a step may do, the same on every process."""

    members: list[Member]
    largest: Any  # B, the largest of the groups' bounds, in nats
    bound: Any  # the same, but never 0
    fixed: Any  # a fixed multiplier instead of a bound, or None
    previous: Any  # multiplier of the last step; inf before the first
    unit: Any  # of the loss
    size: Any  # weights that take part


def agree(batches: list[Batch], numbers: Numbers) -> Agreement | None:
    """Who takes part, the last multiplier and the unit of the loss, over all processes in one reduction. None: none do."""
    groups = [batch.group for batch in batches]
    alone, relative = numbers.shards is None, groups[0]["initial_curvature"] is None
    live: list[Batch] = []
    lrs: list[Scalar] = []
    rows: list[Row] = []
    for batch in batches:
        lr = numbers.lr(batch.group["lr"])
        if (batch.rows or not alone) and (isinstance(lr, Tensor) or lr > 0):
            live.append(batch)
            lrs.append(lr)
            rows += batch.rows
    if not live:
        return None
    sizes: Sequence[Any] = [batch.size for batch in live]
    present: Sequence[Any] = [len(batch.rows) for batch in live]
    last: Sequence[Any] = numbers.last_eta(rows)
    own_scale: Sequence[Any] = numbers.scale_sums(batches, live, lrs) if relative else (0.0, 0.0, 0.0, 0.0)
    scale = own_scale
    if not alone:
        sizes, present, last, scale = totals(numbers, sizes, present, last, scale)
    each, n = bounds([batch.group for batch in live], lrs, sizes)
    if not alone:  # a group without a gradient on any process does not count
        each = [numbers.where(count > 0, numbers.number(e), 0.0) for e, count in zip(each, present, strict=True)]
    largest, bound = numbers.largest(each)
    if not isinstance(bound, Tensor) and bound == 0:
        return None
    members = [
        Member(batch, lr, numbers.factor(e, bound))
        for batch, lr, e in zip(live, lrs, each, strict=True)
        if isinstance(e, Tensor) or e > 0
    ]
    unit: Any = 1.0
    if relative:
        squares, entries, known, total = scale
        stored, unit = numbers.unit(squares, entries, known, total, lambda: loss_scale.typical_step(groups, n))
        for member in members:
            numbers.settle(member.batch, member.lr, stored, own_scale[-1])
    fixed = groups[0]["eta"]  # global: the same in all groups
    fixed = None if fixed is None else numbers.number(fixed)
    count, eta = last
    return Agreement(members, largest, bound, fixed, numbers.mean_eta(count, eta), unit, n)


def totals(numbers: Numbers, *lists: Sequence[Any]) -> list[list[Any]]:
    """The same lists with every number added up over all processes."""
    flat = iter(numbers.total([x for values in lists for x in values]))
    return [[next(flat) for _ in values] for values in lists]


class Part(NamedTuple):
    """One sweep, and what its sums count for."""

    sweep: Any  # a Sweep; on a device a DeviceSweep
    factor: Any
    alive: Tensor | None
    counted: bool  # False if another process counts the same shard


class Passes:
    """The passes of one step over all that takes part; owns the sums, over all processes, and the count of missing entries."""

    def __init__(self, agreed: Agreement, numbers: Numbers) -> None:
        self.numbers, self.agreed, self.missing = numbers, agreed, 0.0
        self.parts = [part for member in agreed.members for part in self._parts(member)]

    def _parts(self, member: Member) -> list[Part]:
        group, rows = member.batch.group, member.batch.rows
        k = Constants(
            **ARTURO.constants(group),
            factor=(-1.0 if group["maximize"] else 1.0) / self.agreed.unit,
            decay=decay(group, member.lr),
            alive=member.lr > 0 if isinstance(member.lr, Tensor) else None,
        )
        if self.numbers.shards is None:
            return [Part(self.numbers.sweep(group, rows, k), member.factor, k.alive, True)]
        chosen = [(counted, [row for row in rows if row.counted is counted]) for counted in (True, False)]
        return [Part(self.numbers.sweep(group, own, k), member.factor, k.alive, counted) for counted, own in chosen if own]

    @property
    def seen(self) -> Any:
        """Whether any gradient entry was observed."""
        return self.missing < self.agreed.size

    def observe(self, eta: Any) -> Evaluation:
        """The surrogates' update, and C with its derivatives at ``eta``; counts what is missing."""
        w, s_w, eta_w = self.numbers.units(eta, may_be_limit=True)
        s_0, s_1, s_2, self.missing = self._sums([part.sweep.observe(s_w, eta_w) for part in self.parts], 4)
        return Evaluation(eta, *constraint(w, s_0, s_1, s_2))

    def probe(self, eta: Any) -> Evaluation:
        """C and its derivatives at another ``eta``."""
        w, s_w, eta_w = self.numbers.units(eta)
        s_0, s_1, s_2 = self._sums([part.sweep.probe(s_w, eta_w) for part in self.parts], 3)
        return Evaluation(eta, *constraint(w, s_0, s_1, s_2))

    def move(self, solution: DualSolution) -> Any:
        """Mean and precision; returns the KL of the step, sum f^2 S_0 / (2 w^2)."""
        w, s_w, eta_w = self.numbers.units(solution.eta)
        self.moving = (self.agreed.largest > 0) & self.seen & solution.solved
        moved = [self.numbers.move(part, s_w, eta_w, solution, self.moving) for part in self.parts]
        s_0 = self.numbers.taken_sum([(part, sums) for part, sums in zip(self.parts, moved, strict=True) if part.counted])
        return s_0 / (2 * w * w) * solution.scale * solution.scale

    def _sums(self, tables: list[Tensor], columns: int) -> Sequence[Any]:
        """Of what this process counts, over all processes."""
        pairs = zip(self.parts, tables, strict=True)
        return self.numbers.sums([self.numbers.masked(table, part.alive) for part, table in pairs if part.counted], columns)
