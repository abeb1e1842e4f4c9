"""One trust region over many processes: the passes run on local shards, and only sums travel.

FSDP2 (``fully_shard``), HSDP and tensor parallelism make parameters DTensors: each process holds a shard. Nothing is gathered.
Per step there is one all-reduce to agree on what takes part, and one per pass over memory for its sums, each of some hundred
numbers. They go over the mesh dimensions along which something is sharded, and no others; what is replicated along one of
these is counted by its first process only. Plain parameters beside DTensors are treated as replicated.

**The same bits everywhere.** Every process must find the same multiplier, even where groups of processes sum the same numbers
independently (the replicas of HSDP), possibly in a different order. So a sum travels as digits in base 2^32
(:func:`to_digits`), whose sums are exact in float64, whatever the order.

This module does not import torch.distributed before someone else has made the first DTensor.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

BASE = 2.0**32
LOWEST, HIGHEST = -960, 960  # powers of two: what is smaller counts as 0, what is larger as not finite


class Piece(NamedTuple):
    """This process's part of a parameter; ``starts``: where its equally long runs begin in the whole parameter."""

    counted: bool  # whether this process counts it in sums, and not another one that has the same
    starts: tuple[int, ...]


class Layout(NamedTuple):
    """How parameters on one mesh with the same placements are spread: over which processes, including this one."""

    ranks: frozenset[int]
    groups: list[Any]  # process groups, one for each mesh dimension along which something is sharded


def is_sharded(x: Tensor) -> bool:
    """Whether ``x`` is a DTensor; asks without importing them."""
    return type(x) is not torch.nn.Parameter and type(x) is not Tensor and hasattr(x, "device_mesh")


def find(param_groups: Iterable[Mapping[str, Any]]) -> Shards | None:
    """The processes over which the sums of these parameters go; None if all parameters are plain."""
    plain = torch.nn.Parameter  # nearly all are: no call for each
    sharded = [p for group in param_groups for p in group["params"] if type(p) is not plain and is_sharded(p)]
    return Shards(sharded) if sharded else None


def refuse_flat(params: Iterable[Tensor]) -> None:
    """Raise RuntimeError for FSDP1's parameters: parts of a flat vector that do not tell where they belong.

    Every process would find a separate multiplier for its part, which is another algorithm, and its checkpoints would fail.
    """
    if not any(getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False) for p in params):
        return
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1:
        raise RuntimeError(
            "arTuRO does not support FullyShardedDataParallel (FSDP1): its flat parameters hide which process holds what, and "
            "each would have a separate trust region. Use fully_shard (FSDP2) or DistributedDataParallel"
        )


class Shards:
    """The processes over which a step's sums go, as the parameters' meshes and placements tell."""

    def __init__(self, params: Sequence[Any]) -> None:
        import torch.distributed as dist

        self._rank = dist.get_rank()
        self._layouts: dict[Any, Layout] = {}
        for p in params:
            key = p.device_mesh, p.placements
            if key not in self._layouts:
                self._layouts[key] = _layout(*key, self._rank)
        self._device = params[0].device_mesh.device_type
        groups = {
            frozenset(dist.get_process_group_ranks(group)): group
            for layout in self._layouts.values()
            for group in layout.groups
        }
        largest = {ranks: group for ranks, group in groups.items() if not any(ranks < other for other in groups)}
        self._first = [min(ranks) for ranks in largest]
        self._groups = list(largest.values())
        if any(len(x & y) > 1 for x, y in itertools.combinations(largest, 2)):
            raise RuntimeError(
                "Arturo cannot tell which process counts what: parameters are sharded over groups of processes that overlap, "
                f"{' and '.join(str(sorted(x)) for x in largest)}. Use meshes whose dimensions are those of one mesh"
            )
        if len(largest) > 1 and math.prod(map(len, largest)) == dist.get_world_size():
            self._groups = [dist.group.WORLD]  # one reduction in place of several

    def local(self, p: Any, grad: Any, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """The shards of this process. A gradient with other placements (Partial) is redistributed to those of its parameter."""
        if is_sharded(p) != is_sharded(grad):
            kinds = [type(x).__name__ for x in (p, grad)]
            raise RuntimeError(
                f"Arturo found a parameter of type {kinds[0]} and shape {tuple(p.shape)} with a gradient of type {kinds[1]}: "
                "both must be DTensors or none (distribute the gradient like the parameter, or fill it by backward())"
            )
        if not is_sharded(p):
            return p, grad, state
        if grad.device_mesh != p.device_mesh or grad.placements != p.placements:
            grad = grad.redistribute(p.device_mesh, p.placements)
        return p.to_local(), grad.to_local(), {name: to_local(x) for name, x in state.items()}

    def piece(self, p: Any, rounded: bool) -> Piece:
        """``rounded``: the state is in bfloat16, whose rounding depends on the entries' positions in the whole parameter."""
        if not is_sharded(p):
            return Piece(all(first == self._rank for first in self._first), (0,))
        ranks = self._layouts[p.device_mesh, p.placements].ranks
        return Piece(all(first in ranks for first in self._first), _starts_of(p) if rounded else (0,))

    def total(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all processes: the same bits on each. One all-reduce."""
        if not self._groups:
            return values
        import torch.distributed as dist

        digits = to_digits(values.to(torch.float64)).to(self._device)
        for group in self._groups:
            dist.all_reduce(digits, group=group)
        return from_digits(digits.to(values.device)).to(values.dtype)

    def totals(self, values: Sequence[float]) -> list[float]:
        """:meth:`total` for numbers of the host."""
        sums: list[float] = self.total(torch.tensor(values, dtype=torch.float64, device="cpu")).tolist()
        return sums


def to_digits(values: Tensor) -> Tensor:
    """Each float64 number as a row of digits in base 2^32, whole numbers of its sign; last a mark if it is not finite.

    Example:
        >>> x = torch.tensor([1.5, -(2.0**40), 3e-80], dtype=torch.float64)
        >>> torch.equal(from_digits(to_digits(x)), x)
        True
        >>> from_digits(to_digits(x[:2]) + to_digits(torch.tensor([math.inf, 1.0], dtype=torch.float64)))
        tensor([        nan, -1.0995e+12], dtype=torch.float64)
    """
    scaled = values.unsqueeze(-1) / _places(values.device)  # exact: powers of two
    # A number has 53 bits: far enough below them all digits are 0.
    digits = torch.where(scaled.abs() < 2.0**53 * BASE, scaled.fmod(BASE).trunc(), 0.0)
    lost = ~(values.abs() < 2.0**HIGHEST)
    return torch.cat([digits, lost.unsqueeze(-1).to(values.dtype)], -1)


def from_digits(digits: Tensor) -> Tensor:
    """The numbers again, after sums of up to 2^21 rows; from the lowest digit up, so that a single row comes back as it was."""
    values = (digits[..., :-1] * _places(digits.device)).cumsum(-1)[..., -1]
    return torch.where(digits[..., -1] > 0, math.nan, values)


@functools.cache
def _places(device: torch.device) -> Tensor:
    return torch.tensor([2.0**place for place in range(LOWEST, HIGHEST, 32)], device=device, dtype=torch.float64)


def drop_gathered(params: Iterable[Tensor]) -> None:
    """Let FSDP2 gather the weights again in the next forward pass, if any of ``params`` is sharded.

    Its outermost module keeps the gathered weights after a forward pass without backward, and would not notice that the
    shards have changed since; nor does it show its sharded parameters until then. Resharding is safe at any time: a backward
    pass that needs the weights gathers them again.
    """
    if not any(is_sharded(p) for p in params):
        return
    from torch.distributed._composable_state import _module_state_mapping  # no other place knows all of them
    from torch.distributed.fsdp import FSDPModule

    for module in list(_module_state_mapping):
        if isinstance(module, FSDPModule):
            module.reshard()


def like(local: Tensor, p: Any) -> Tensor:
    """A DTensor with the placements of ``p`` whose shard here is ``local``; complex parameters have real state."""
    from torch.distributed.tensor import DTensor

    shape = torch.Size((*p.shape, 2)) if p.is_complex() else p.shape
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=shape, stride=stride)


def row_parts(p: Any) -> int | None:
    """Over how many processes the rows of a DTensor are spread, the same number on each; None for any other layout."""
    sizes = [p.device_mesh.size(i) for i in range(len(p.placements))]
    cut = [(x, n) for x, n in zip(p.placements, sizes, strict=True) if not x.is_replicate() and n > 1]
    if not cut:
        return 1
    (placement, n), *more = cut
    return n if not more and placement.is_shard(0) and p.shape[0] % n == 0 else None


def by_rows(local: Tensor, p: Any) -> Tensor:
    """A DTensor of any shape whose first dimension is spread as the rows of ``p`` are, :func:`row_parts` allowing."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    sizes = [p.device_mesh.size(i) for i in range(len(p.placements))]
    placements = [Shard(0) if n > 1 and x.is_shard() else Replicate() for x, n in zip(p.placements, sizes, strict=True)]
    shape = torch.Size((local.shape[0] * (row_parts(p) or 1), *local.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, p.device_mesh, placements, run_check=False, shape=shape, stride=stride)


def to_local(x: Any) -> Tensor:
    """The shard of this process; a plain tensor is its own."""
    local: Tensor = x.to_local() if is_sharded(x) else x
    return local


def _layout(mesh: Any, placements: Sequence[Any], rank: int) -> Layout:
    if any(placement.is_partial() for placement in placements):
        raise RuntimeError(
            f"Arturo does not support parameters with placements {tuple(placements)}: Partial values are not summed yet "
            "(redistribute the parameter to Shard or Replicate; gradients may be Partial)"
        )
    place = mesh.get_coordinate()
    if place is None:
        return Layout(frozenset([rank]), [])
    sharded = [not placement.is_replicate() for placement in placements]
    index = tuple(slice(None) if yes else at for yes, at in zip(sharded, place, strict=True))
    ranks = frozenset(mesh.mesh[index].flatten().tolist())
    return Layout(ranks, [mesh.get_group(i) for i, yes in enumerate(sharded) if yes and mesh.size(i) > 1])


def _starts_of(p: Any) -> tuple[int, ...]:
    chunks = p.__create_chunk_list__()  # what distributed checkpoints ask
    if len(chunks) != 1 or p.to_local().numel() == 0:
        return (0,)
    more = (2,) if p.is_complex() else ()
    offsets = (*chunks[0].offsets, *(0 for _ in more))
    return run_starts((*p.shape, *more), (*chunks[0].sizes, *more), offsets)


@functools.lru_cache(maxsize=4096)
def run_starts(shape: tuple[int, ...], local: tuple[int, ...], offsets: tuple[int, ...]) -> tuple[int, ...]:
    """Where the box of size ``local`` at ``offsets`` has its runs of neighbouring entries in a tensor of this ``shape``.

    Example:
        >>> run_starts((4, 6), (2, 6), (2, 0)), run_starts((4, 6), (2, 3), (2, 3))
        ((12,), (15, 21))
    """
    cut = [i for i, (whole, here) in enumerate(zip(shape, local, strict=True)) if whole != here]
    last = cut[-1] if cut else 0
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    ranges = [range(start, start + n) for start, n in zip(offsets[:last], local[:last], strict=True)]
    begin = offsets[last] * strides[last] if shape else 0
    return tuple(begin + sum(i * step for i, step in zip(index, strides, strict=False)) for index in itertools.product(*ranges))
