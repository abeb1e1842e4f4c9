"""Placements, missing gradients, counted collectives: the cases. Gradients are made by hand, so that one bit off is seen."""

from __future__ import annotations

import copy
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from training import local, same_on_all, shard_like, traffic

from arturo import PAPER, Arturo, sharding

SHAPES = ((5, 6), (6, 4), (3, 2), (7,), (1,), (40, 7))
KERNELS: dict[str, dict[str, Any]] = {
    "native": {},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "capturable": {"capturable": True},
}


def values(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def layouts(world: int) -> list[list[Any]]:
    """Of each parameter, on a mesh of one or (with 4 processes) two dimensions; None is a plain parameter."""
    if world < 4:
        return [[Shard(0)], [Shard(1)], [Replicate()], [Shard(0)], None, [Shard(1)]]
    return [
        [Shard(0), Shard(1)],
        [Shard(1), Replicate()],
        [Replicate(), Replicate()],
        [Replicate(), Shard(0)],
        None,
        [Shard(0), Shard(0)],
    ]


def make(world: int, **options: Any) -> tuple[Arturo, Arturo]:
    """The optimizer of one process, and that of all."""
    mesh = init_device_mesh("cpu", (world,) if world < 4 else (2, 2))
    whole = [torch.nn.Parameter(x) for x in values(0)]
    sharded = [
        torch.nn.Parameter(x.clone() if placements is None else distribute_tensor(x, mesh, placements))
        for x, placements in zip(values(0), layouts(world), strict=True)
    ]
    return Arturo(whole, **copy.deepcopy(options)), Arturo(sharded, **copy.deepcopy(options))


def params(optimizer: Arturo) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def give(optimizer: Arturo, t: int, lose: bool = False) -> None:
    """The gradients of step ``t``, of which every process takes its part."""
    for p, g in zip(params(optimizer), values(1 + t), strict=True):
        if lose and t % 2:
            g[torch.rand(g.shape, generator=torch.Generator().manual_seed(t)) < 0.3] = float("inf")
        p.grad = distribute_tensor(g, p.device_mesh, p.placements) if hasattr(p, "device_mesh") else g


def step(optimizer: Arturo) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    return optimizer.last_step


def assert_equal(many: Arturo, one: Arturo, **tolerance: float) -> None:
    """Parameters and state of this process are parts of those of the one; without a tolerance, bit for bit."""
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for i, (p, q) in enumerate(zip(params(one), params(many), strict=True)):
        torch.testing.assert_close(local(q), shard_like(p.detach(), q), msg=lambda m, i=i: f"parameter {i}: {m}", **tolerance)
        for name, x in one.state[p].items():
            found = many.state[q][name]
            if name not in ("step", "eta", "scale"):
                assert getattr(found, "placements", None) == getattr(q, "placements", None)
                x = shard_like(x, q)
            torch.testing.assert_close(local(found), x, msg=lambda m, i=i, n=name: f"{n} of parameter {i}: {m}", **tolerance)


def given_eta(rank: int, world: int, *, kernel: str, state_dtype: torch.dtype | None) -> None:
    """Given the multiplier, every bit is that of one process: rounding of bfloat16 state goes by the place in the whole."""
    one, many = make(world, eta=2.0, kl_bound=0.1, weight_decay=0.05, state_dtype=state_dtype, **KERNELS[kernel])
    for t in range(3):
        for optimizer in (one, many):
            give(optimizer, t, lose=True)
            step(optimizer)
        assert many.last_step.skipped == one.last_step.skipped
        assert_equal(many, one)
    same_on_all(many.last_step)


def solved(rank: int, world: int, *, options: dict[str, Any]) -> None:
    """The multiplier is that of one process to the rounding of sums, and the same on all to the bit."""
    one, many = make(world, **options)
    for t in range(3):
        for optimizer in (one, many):
            give(optimizer, t)
            step(optimizer)
        same_on_all(many.last_step)
        torch.testing.assert_close(torch.tensor(many.last_step), torch.tensor(one.last_step), rtol=1e-5, atol=0)
    assert_equal(many, one, rtol=1e-4, atol=1e-6)


def groups_of_their_own(rank: int, world: int, *, capturable: bool) -> None:
    """Groups with unlike bounds, one of them left out by lr = 0."""
    options = {"kl_bound": None, "capturable": capturable}
    one, many = make(world, **options)
    for optimizer in (one, many):
        p = params(optimizer)
        optimizer.param_groups.clear()
        for chosen, more in ((p[:2], {}), (p[2:4], {"kl_bound": 1e-3}), (p[4:5], {"lr": 0.0}), (p[5:], {"lr": 0.5})):
            optimizer.add_param_group({"params": chosen, **more})
    for t in range(4):
        for optimizer in (one, many):
            give(optimizer, t)
            step(optimizer)
        torch.testing.assert_close(torch.tensor(many.last_step), torch.tensor(one.last_step), rtol=1e-5, atol=0)
    same_on_all(many.last_step)
    assert_equal(many, one, rtol=1e-4, atol=1e-6)


def absent(rank: int, world: int, *, capturable: bool) -> None:
    """The last process has no gradient at all, the first lacks one, and both join. The oracle is one process with the shards.

    Plain and replicated parameters are left out: that they have gradients everywhere is what replicated means.
    """
    _, many = make(world, kl_bound=None, weight_decay=5.0, capturable=capturable)
    layout = layouts(world)
    ours = [i for i, x in enumerate(layout) if x is not None and not any(y.is_replicate() for y in x)]
    has = {i: [r for r in range(world) if r != world - 1 and (r, i) != (0, ours[0])] for i in ours}
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, [local(p) for p in params(many)])
    shards = {(i, r): torch.nn.Parameter(gathered[r][i].clone()) for i in ours for r in has[i]}
    one = Arturo(shards.values(), kl_bound=None, weight_decay=5.0, capturable=capturable)
    before = [local(p).clone() for p in params(many)]
    for t in range(4):
        give(many, t)
        for i, p in enumerate(params(many)):
            if i not in has or rank not in has[i]:
                p.grad = None
        mine = [None if p.grad is None else local(p.grad) for p in params(many)]
        dist.all_gather_object(gathered, mine)
        for (i, r), p in shards.items():
            p.grad = gathered[r][i]
        step(one), step(many)
        same_on_all(many.last_step)
        torch.testing.assert_close(torch.tensor(many.last_step), torch.tensor(one.last_step), rtol=1e-5, atol=0)
    for i, p in enumerate(params(many)):
        if i in has and rank in has[i]:
            torch.testing.assert_close(local(p), shards[i, rank].detach(), rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(local(p), before[i])


def nobody(rank: int, world: int, *, capturable: bool) -> None:
    """No gradient anywhere, lr = 0, nothing but NaN: nothing moves and nobody waits."""
    _, many = make(world, kl_bound=0.1, capturable=capturable)
    before = [local(p).clone() for p in params(many)]
    assert step(many)[:3] == (0.0, 0.0, 0.0)
    give(many, 0)
    many.param_groups[0]["lr"] = 0.0
    with CommDebugMode() as seen:
        assert step(many)[:3] == (0.0, 0.0, 0.0)
    assert seen.get_total_counts() == 0
    many.param_groups[0]["lr"] = 1.0
    for p in params(many):
        local(p.grad).fill_(float("nan"))
    info = step(many)
    assert info.skipped == sum(x.numel() for x in values(0)) and not info.active
    assert all(torch.equal(local(p), x) for p, x in zip(params(many), before, strict=True))


def counted(rank: int, world: int, *, capturable: bool) -> None:
    """One all-reduce to agree and one per pass over memory, of a few kilobytes; nothing else travels, nothing is gathered."""
    _, many = make(world, kl_bound=0.01, capturable=capturable)
    for t in range(4):
        give(many, t)
        counts, sizes = traffic(many)
        assert counts == {"c10d.allreduce_": many.last_step.evaluations + 2}, counts
        assert len(sizes) == many.last_step.evaluations + 2 and max(sizes) <= 4096, sizes
    assert many.last_step.evaluations == (4 if capturable else 1)


def partial_gradients(rank: int, world: int) -> None:
    """A gradient that still has to be summed up is; a parameter that has, or a gradient of another kind, is refused."""
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.nn.Parameter(values(0)[0])
    p = torch.nn.Parameter(distribute_tensor(values(0)[0], mesh, [Shard(0)]))
    one, many = Arturo([whole], eta=2.0), Arturo([p], eta=2.0)
    whole.grad = torch.full_like(whole, float(world))
    unsummed = DTensor.from_local(torch.ones_like(whole), mesh, [Partial()])
    for grad in (unsummed, unsummed.redistribute(mesh, [Replicate()])):
        p.grad = grad
        one.step(), many.step()
        assert torch.equal(local(p), shard_like(whole.detach(), p))
    no_number = torch.nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Partial()]))
    for q, grad, message in (
        (no_number, DTensor.from_local(torch.ones(3), mesh, [Partial()]), "Partial values are not summed yet"),
        (p, torch.ones_like(whole), "both must be DTensors or none"),
    ):
        optimizer = Arturo([q])
        try:
            q.grad = grad
            optimizer.step()
        except RuntimeError as error:
            assert message in str(error) or "assigned grad" in str(error), error
        else:
            raise AssertionError(message)


def several_meshes(rank: int, world: int) -> None:
    """Parameters over all processes, and others over halves of them, replicated: these halves lie inside of the whole."""
    flat, square = init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (2, world // 2))
    placed = [
        (flat, [Shard(0)]),
        (square, [Replicate(), Shard(0)]),
        (square, [Shard(0), Replicate()]),
        (square, [Shard(0)] * 2),
    ]
    first = values(0)[: len(placed)]
    one = Arturo([torch.nn.Parameter(x.clone()) for x in first], kl_bound=None)
    many = Arturo([torch.nn.Parameter(distribute_tensor(x, *y)) for x, y in zip(first, placed, strict=True)], kl_bound=None)
    for t in range(3):
        for optimizer in (one, many):
            for p, g in zip(params(optimizer), values(1 + t)[: len(placed)], strict=True):
                p.grad = distribute_tensor(g, p.device_mesh, p.placements) if hasattr(p, "device_mesh") else g
        one.step()
        with CommDebugMode() as seen:
            many.step()
        assert seen.get_total_counts() == many.last_step.evaluations + 2
        same_on_all(many.last_step)
        torch.testing.assert_close(torch.tensor(many.last_step), torch.tensor(one.last_step), rtol=1e-5, atol=0)
    assert_equal(many, one, rtol=1e-4, atol=1e-6)


def dimension_by_dimension(rank: int, world: int) -> None:
    """Where the sharded dimensions are not all there is, there is a reduction along each, to the same bits."""
    _, many = make(world)
    at_once = sharding.find(many.param_groups).totals([0.1 * (rank + 1), 1e-30])
    with mock.patch.object(dist, "get_world_size", lambda: 2 * world):
        shards = sharding.find(many.param_groups)
    with CommDebugMode() as seen:
        found = shards.totals([0.1 * (rank + 1), 1e-30])
    assert found == at_once and seen.get_total_counts() == 2
    torch.testing.assert_close(torch.tensor(found), torch.tensor([0.1 * world * (world + 1) / 2, world * 1e-30]))


def fsdp1(rank: int, world: int) -> None:
    """Flat parameters, and views of them, are refused, in the constructor and in a late group, which is then not added."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated
        for use_orig_params in (False, True):
            model = FullyShardedDataParallel(
                torch.nn.Linear(4, 3), device_id=torch.device("cpu"), use_orig_params=use_orig_params
            )
            with pytest.raises(RuntimeError, match="does not support FullyShardedDataParallel"):
                Arturo(model.parameters())
            optimizer = Arturo([torch.nn.Parameter(torch.ones(2))])
            with pytest.raises(RuntimeError, match="fully_shard"):
                optimizer.add_param_group({"params": list(model.parameters())})
            assert len(optimizer.param_groups) == 1


SOLVED: dict[str, dict[str, Any]] = {
    "unset-bound": {"kl_bound": None, "weight_decay": 5.0},
    "capturable": {"kl_bound": 0.01, "capturable": True},
    "foreach": {"kl_bound": 0.01, "foreach": True},
    "paper": {"kl_bound": 0.01, **PAPER},
    "paper-capturable": {"kl_bound": 0.01, **PAPER, "capturable": True},
    "tensor-lr": {"kl_bound": 0.01, "lr": torch.tensor(0.5), "capturable": True},
    "adam": {"kl_bound": 0.01, "surrogate": "adam"},
    "adam-capturable": {"kl_bound": 0.01, "surrogate": "adam", "capturable": True},
    "bfloat16-state": {"kl_bound": 0.01, "eta": 1.0, "state_dtype": torch.bfloat16},
}
