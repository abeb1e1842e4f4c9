"""AdaArturo over several processes: the cases."""

from __future__ import annotations

import copy
import functools
import os
import warnings
from pathlib import Path
from typing import Any

import equality
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from training import Net, compare, local, same_on_all, shard_like, traffic, train, whole

from arturo import AdaArturo, checkpoint
from arturo.kernels import native

DIAGONAL = {"covariance": "diagonal", "lr": 0.01}
KRONECKER = {"block": 4, "lr": 0.01, "refresh": 3}  # tiles of at most four rows, as two processes have of the first parameter
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # float64: all but the order of sums
SHAPES = ((8, 6), (6, 4), (4, 4), (7,), (1,), (5, 6), (16, 4, 1, 3))


def values(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def layouts(world: int) -> list[list[Any] | None]:
    """Of each parameter, on a mesh of one or (with 4 processes) two dimensions; None is a plain parameter."""
    flat: list[list[Any] | None] = [[Shard(0)], [Shard(1)], [Replicate()], [Shard(0)], None, [Shard(0)], [Shard(0)]]
    if world < 4:
        return flat
    two: list[list[Any] | None] = [None if x is None else [Replicate(), *x] for x in flat]
    two[1] = [Shard(0), Shard(1)]
    return two


def turned(world: int) -> list[bool]:
    """Which of them turn: equal numbers of rows in every process."""
    return [SHAPES[0][0] % (2 if world == 4 else world) == 0, False, True, False, False, False, world != 3]


def make(world: int, per_parameter: list[dict[str, Any]] | None = None, **options: Any) -> tuple[AdaArturo, AdaArturo]:
    """The optimizer of one process, and that of all. In one process ``per_parameter`` options, a group for each."""
    mesh = init_device_mesh("cpu", (world,) if world < 4 else (2, 2))
    plain = [torch.nn.Parameter(x) for x in values(0)]
    sharded = [
        torch.nn.Parameter(x.clone() if placements is None else distribute_tensor(x, mesh, placements))
        for x, placements in zip(values(0), layouts(world), strict=True)
    ]
    groups = [{"params": [p], **more} for p, more in zip(plain, per_parameter or [{}] * len(plain), strict=True)]
    return AdaArturo(groups, **copy.deepcopy(options)), AdaArturo(sharded, **copy.deepcopy(options))


def params(optimizer: AdaArturo) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def give(optimizer: AdaArturo, t: int, lose: bool = False) -> None:
    """The gradients of step ``t``, of which every process takes its part."""
    for i, (p, g) in enumerate(zip(params(optimizer), values(1 + t), strict=True)):
        if lose and t % 2:
            g[torch.rand(g.shape, generator=torch.Generator().manual_seed(i + 100 * t)) < 0.05] = float("nan")
        p.grad = distribute_tensor(g, p.device_mesh, p.placements) if hasattr(p, "device_mesh") else g


def step(optimizer: AdaArturo) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    return optimizer.last_step


def assert_same_step(many: AdaArturo, one: AdaArturo) -> None:
    same_on_all(many.last_step)
    torch.testing.assert_close(torch.tensor(many.last_step), torch.tensor(one.last_step), rtol=1e-9, atol=0)


def assert_same_state(many: AdaArturo, one: AdaArturo) -> None:
    for i, (p, q) in enumerate(zip(params(one), params(many), strict=True)):
        torch.testing.assert_close(local(q), shard_like(p.detach(), q), **EXACT)
        assert set(one.state[p]) == set(many.state[q]) - {"tile"} | ({"tile"} & set(one.state[p])), i
        for name, x in one.state[p].items():
            y = many.state[q][name]
            assert hasattr(y, "placements") == (hasattr(q, "placements") and name not in ("step", "tile")), name
            torch.testing.assert_close(whole(y), x, msg=lambda m, i=i, n=name: f"{n} of parameter {i}: {m}", **EXACT)


def diagonal(rank: int, world: int, *, options: dict[str, Any]) -> None:
    """However parameters are laid out: the state and the step of one process, eta the same on all to the bit."""
    one, many = make(world, **{**DIAGONAL, **options})
    for t in range(6):
        for optimizer in (one, many):
            give(optimizer, t, lose=True)
            step(optimizer)
        assert_same_step(many, one)
    assert_same_state(many, one)


def kronecker(rank: int, world: int) -> None:
    """Where the boundaries of shards and tiles agree, state and step of one process; what cannot turn is on the diagonal."""
    on = [{"covariance": "kronecker" if yes else "diagonal"} for yes in turned(world)]
    one, many = make(world, on, **KRONECKER, weight_decay=0.5)
    for t in range(8):
        for optimizer in (one, many):
            give(optimizer, t, lose=True)
            step(optimizer)
        assert_same_step(many, one)
    assert_same_state(many, one)
    states = [many.state[p] for p in params(many)]
    tiles = [state["tile"].tolist() if "tile" in state else None for state in states]
    zero = [0, 0]
    assert tiles == [[2, 2] if world != 3 else zero, zero, [4, 4], None, None, zero, [2, 2] if world != 3 else zero], tiles
    assert [("Q_L" in state, "Q_R" in state) for state in states] == [(yes, yes) for yes in turned(world)]


def own_tiles(rank: int, world: int) -> None:
    """The rows of a shard that is smaller than a block are tiles of their own; eta is the same on all all the same."""
    _, many = make(world, lr=0.01)
    for t in range(8):
        give(many, t)
        before = [local(p).clone() for p in params(many)]
        info = step(many)
        same_on_all(info)
        assert 0 < info.kl <= info.bound * (1 + 1e-9)
        assert not any(torch.equal(local(p), old) for p, old in zip(params(many), before, strict=True) if old.numel())
    state = many.state[params(many)[0]]
    assert state["tile"].tolist() == [4, 6] and state["L"].shape == (2, 1, 4, 4) and local(state["R"]).shape == (1, 1, 6, 6)
    replicas = [whole(p) for p in params(many)]
    same_on_all([x.tolist() for x in replicas])


def tall(rank: int, world: int) -> None:
    """An embedding stays one: its shards are less tall than it is, and do not turn."""
    mesh = init_device_mesh("cpu", (world,))
    p = torch.nn.Parameter(distribute_tensor(torch.ones(20, 2), mesh, [Shard(0)]))
    p.grad = distribute_tensor(torch.ones(20, 2), mesh, [Shard(0)])
    optimizer = AdaArturo([p])
    optimizer.step()
    assert "tile" not in optimizer.state[p] and "L" not in optimizer.state[p]


def uneven(rank: int, world: int) -> None:
    """The last process was installed without a compiler: the same sums, the step of one process to rounding."""
    one, many = make(world, **DIAGONAL)
    library = native._library
    try:
        native._library = library if rank < world - 1 else None
        for t in range(4):
            for optimizer in (one, many):
                give(optimizer, t)
                step(optimizer)
            torch.testing.assert_close(torch.tensor(many.last_step), torch.tensor(one.last_step), rtol=1e-9, atol=0)
    finally:
        native._library = library
    assert_same_state(many, one)


def groups_of_their_own(rank: int, world: int) -> None:
    """Unlike lr, one of them 0; the last process has nothing of the group with the largest, and says the same."""
    rates = [{"lr": x} for x in (0.01, 0.002, 0.005, 0.01, 0.0, 0.001, 0.003)]
    one, many = make(world, rates, **DIAGONAL)
    sharded = params(many)
    many.param_groups.clear()
    for p, rate in zip(sharded, rates, strict=True):
        many.add_param_group({"params": [p], **rate})
    for t in range(4):
        for optimizer in (one, many):
            give(optimizer, t)
            step(optimizer)
        assert_same_step(many, one)
    assert_same_state(many, one)


def absent(rank: int, world: int, *, options: dict[str, Any]) -> None:
    """The last process has no gradient at all and joins all the same. The oracle is one process with the others' shards."""
    mesh = init_device_mesh("cpu", (world,))
    wholes, given = values(0)[:1], [values(1 + t)[0] for t in range(6)]
    p = torch.nn.Parameter(distribute_tensor(wholes[0], mesh, [Shard(0)]))
    slow = torch.nn.Parameter(distribute_tensor(torch.ones(world, dtype=torch.float64), mesh, [Shard(0)]))
    many = AdaArturo([{"params": [p], "lr": 0.02}, {"params": [slow]}], **options)
    rows = local(p).shape[0] * (world - 1)
    here = [torch.nn.Parameter(wholes[0][:rows].clone()), torch.nn.Parameter(torch.ones(world - 1, dtype=torch.float64))]
    one = AdaArturo([{"params": [here[0]], "lr": 0.02}, {"params": [here[1]]}], **options)
    before = local(p).clone()
    for t in range(6):
        if rank != world - 1:
            p.grad = distribute_tensor_locally(given[t], p, rank)
            slow.grad = distribute_tensor_locally(given[t][0, :world].clone(), slow, rank)
        here[0].grad, here[1].grad = given[t][:rows].clone(), given[t][0, : world - 1].clone()
        step(one), step(many)
        assert_same_step(many, one)
    if rank == world - 1:
        assert torch.equal(local(p), before) and p not in many.state
    else:
        mine = here[0].detach().chunk(world - 1)[rank]
        torch.testing.assert_close(local(p), mine, **EXACT)


def distribute_tensor_locally(x: torch.Tensor, p: Any, rank: int) -> Any:
    """A DTensor like ``p`` of which this process cuts its own shard: no collective, for the others do not come."""
    from torch.distributed.tensor import DTensor

    n = local(p).shape[0]
    return DTensor.from_local(
        x[rank * n : (rank + 1) * n].clone(), p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
    )


def nobody(rank: int, world: int) -> None:
    """No gradient anywhere, lr = 0, nothing but NaN: nothing moves and nobody waits."""
    _, many = make(world, **KRONECKER)
    before = [local(p).clone() for p in params(many)]
    assert step(many) == (0.0, 0.0, 0.0, 0, False, 0)
    give(many, 0)
    many.param_groups[0]["lr"] = 0.0
    assert step(many) == (0.0, 0.0, 0.0, 0, False, 0)
    assert all(many.state[p]["step"] == 0 for p in params(many))
    many.param_groups[0]["lr"] = 0.01
    for p in params(many):
        local(p.grad).fill_(float("nan"))
    info = step(many)
    assert info.skipped == sum(x.numel() for x in values(0)) and not info.active and info.kl == 0
    assert all(torch.equal(local(p), x) for p, x in zip(params(many), before, strict=True))


def counted(rank: int, world: int, *, options: dict[str, Any]) -> None:
    """One all-reduce per step, of some kilobytes; nothing is gathered."""
    _, many = make(world, **options)
    for t in range(3):
        give(many, t)
        counts, sizes = traffic(many)
        assert counts == {"c10d.allreduce_": 1}, counts
        assert len(sizes) == 1 and sizes[0] <= 11 * 512 * len(SHAPES), sizes


# ---- whole trainings

EVERYTHING = {"schedule": True, "accumulate": 2, "clip": 0.5, "missing": True, "steps": 20}


def trained(parallel: Any, replica: int, replicas: int, **options: Any) -> None:
    training = EVERYTHING if options.pop("clip", True) else {**EVERYTHING, "clip": None}
    compare(parallel, {**DIAGONAL, **options}, training, replica, replicas, torch.float64, 1e-9, AdaArturo)


def ddp(rank: int, world: int) -> None:
    trained(functools.partial(DistributedDataParallel, find_unused_parameters=True), rank, world)


def ddp_kronecker(rank: int, world: int) -> None:
    """Every process has everything, and the same bits of it."""
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    optimizer = AdaArturo(model.parameters(), **KRONECKER)
    said = train(model, optimizer, steps=8, replica=rank, replicas=world)
    same_on_all([said, [p.tolist() for p in model.parameters()]])
    assert "Q_L" in optimizer.state[model.module.inner.weight] and all(info.kl > 0 for info in said)


def fsdp2(rank: int, world: int, *, options: dict[str, Any]) -> None:
    mesh = init_device_mesh("cpu", (world,))
    trained(functools.partial(equality.sharded, mesh=mesh), rank, world, **options)


def hsdp(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    trained(functools.partial(equality.sharded, mesh=mesh), rank, world)


def tensor_parallel(rank: int, world: int) -> None:
    """inner by rows, outer by columns, the scale plain."""
    trained(functools.partial(equality.split, mesh=init_device_mesh("cpu", (world,))), 0, 1, clip=False)


# ---- checkpoints: (8, 6) has tiles of (4, 3) in one process and in two, (4, 8) of (4, 4) in one and (2, 4) in two


class Small(torch.nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def small(dtype: torch.dtype, sharded: bool = True, **options: Any) -> tuple[torch.nn.Module, AdaArturo]:
    model = Small().to(dtype)
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, AdaArturo(model.parameters(), **KRONECKER, **options)


def train_small(model: torch.nn.Module, optimizer: AdaArturo, start: int, stop: int) -> list[Any]:
    """The same gradient whatever the number of processes: all see the whole batch."""
    info = []
    dtype = next(model.parameters()).dtype
    for t in range(start, stop):
        x = torch.randn(12, 6, generator=torch.Generator().manual_seed(t)).to(dtype)
        optimizer.zero_grad()
        (model(x) - x[:, :4].square()).square().mean().backward()
        optimizer.step()
        info.append(optimizer.last_step)
    return info


def bits(model: torch.nn.Module, optimizer: AdaArturo) -> dict[str, dict[str, torch.Tensor]]:
    return {
        name: {"param": whole(p).clone(), **{key: whole(x).clone() for key, x in optimizer.state[p].items()}}
        for name, p in model.named_parameters()
    }


def same_bits(found: dict[str, dict[str, torch.Tensor]], expected: dict[str, dict[str, torch.Tensor]]) -> None:
    assert set(found) == set(expected)
    for name, entry in expected.items():
        assert set(found[name]) == set(entry), name
        for key, x in entry.items():
            assert x.dtype == found[name][key].dtype and torch.equal(x, found[name][key]), (name, key)


def folder(name: str, dtype: torch.dtype) -> Path:
    return Path(os.environ["ARTURO_TEST_FOLDER"], f"adaptive-{name}-{dtype}")


def save(rank: int, world: int, *, dtype: torch.dtype) -> None:
    """Four steps, between two refreshes, to a checkpoint. The same number of processes resumes to the bit, either way."""
    model, optimizer = small(dtype)
    train_small(model, optimizer, 0, 4)
    weights, state = get_state_dict(model, optimizer)
    where = folder(str(world), dtype)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=where)
    expected = bits(model, optimizer)
    if rank == 0:
        torch.save(expected, where / "whole.pt")
    everything = StateDictOptions(full_state_dict=True)
    gathered = copy.deepcopy(get_state_dict(model, optimizer, options=everything))
    resumed = [small(dtype) for _ in range(2)]
    loaded = get_state_dict(*resumed[0])  # makes the state, by a step with lr = 0
    dcp.load({"model": loaded[0], "optimizer": loaded[1]}, checkpoint_id=where)
    set_state_dict(*resumed[0], model_state_dict=loaded[0], optim_state_dict=loaded[1])
    set_state_dict(*resumed[1], model_state_dict=gathered[0], optim_state_dict=gathered[1], options=everything)
    said = train_small(model, optimizer, 4, 8)
    for other in resumed:
        same_bits(bits(*other), expected)
        assert train_small(*other, 4, 8) == said
        same_bits(bits(*other), bits(model, optimizer))


def load(rank: int, world: int, *, source: int, dtype: torch.dtype, sharded: bool = True) -> None:
    """On another number of processes: what has the same tiles carries over, the rest is reset; training continues."""
    model, optimizer = small(dtype, sharded)
    where = folder(str(source), dtype)
    expected = torch.load(where / "whole.pt")
    weights, state = get_state_dict(model, optimizer)
    fresh = copy.deepcopy(bits(model, optimizer))
    planner = checkpoint.load_planner()
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=where, planner=planner)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    found = bits(model, optimizer)
    anew = set()
    for name, entry in expected.items():
        same_tile = torch.equal(entry.get("tile", torch.ones(1)), fresh[name].get("tile", torch.ones(1)))
        if not same_tile:
            anew.add(name)
        for key, x in found[name].items():
            kept = same_tile or key in ("param", "start", "mean")
            assert torch.equal(x, (expected if kept else fresh)[name][key]), (name, key)
    assert anew == {1: {"2.weight"}, 3: {"0.weight", "2.weight"}, 4: {"0.weight", "2.weight"}}[world], anew
    ours = [w for w in caught if "was reset" in str(w.message)]
    assert len(ours) == 1 and str(ours[0].message).startswith(f"the state of {len(anew)} parameters"), caught
    for info in train_small(model, optimizer, 4, 8):
        same_on_all(info)
        assert 0 < info.kl <= info.bound * (1 + 1e-9)
    assert all(torch.isfinite(x).all() for entry in bits(model, optimizer).values() for x in entry.values())


def strict(rank: int, world: int) -> None:
    """Without the planner torch itself refuses what does not fit; with it, everything but factors must be there."""
    model, optimizer = small(torch.float32)
    weights, state = get_state_dict(model, optimizer)
    for planner, asked, words in (
        (None, {"model": weights, "optimizer": state}, "Size mismatch"),
        (checkpoint.load_planner(), {"model": weights, "optimizer": state, "more": torch.ones(2)}, "Missing key"),
    ):
        try:
            dcp.load(asked, checkpoint_id=folder("2", torch.float32), planner=planner)
        except BaseException as error:  # DCP's own are no Exceptions
            assert words in str(error), error
        else:
            raise AssertionError(words)


DTYPES = (torch.float32, torch.bfloat16)
ON_DEVICE = {"capturable": True, "lr": torch.tensor(0.01, dtype=torch.float64)}
CASES: dict[int, dict[str, Any]] = {
    2: {
        "diagonal": functools.partial(diagonal, options={"weight_decay": 0.5}),
        "diagonal-capturable": functools.partial(diagonal, options=ON_DEVICE),
        "kronecker": kronecker,
        "own-tiles": own_tiles,
        "tall": tall,
        "groups": groups_of_their_own,
        "absent": functools.partial(absent, options={**KRONECKER, "block": 8}),  # half the matrix has the tile of its shard
        "absent-diagonal": functools.partial(absent, options=DIAGONAL),
        "absent-capturable": functools.partial(absent, options={**DIAGONAL, "capturable": True}),
        "uneven": uneven,
        "nobody": nobody,
        "counted": functools.partial(counted, options=KRONECKER),
        "counted-capturable": functools.partial(counted, options={**DIAGONAL, "capturable": True}),
        "ddp": ddp,
        "ddp-kronecker": ddp_kronecker,
        "fsdp2": functools.partial(fsdp2, options={}),
        "fsdp2-capturable": functools.partial(fsdp2, options={"capturable": True}),
        "tensor-parallel": tensor_parallel,
        **{f"save-{dtype}": functools.partial(save, dtype=dtype) for dtype in DTYPES},
    },
    1: {
        **{f"load-{dtype}": functools.partial(load, source=2, dtype=dtype) for dtype in DTYPES},
        "load-plain": functools.partial(load, source=2, dtype=torch.float32, sharded=False),
        "strict": strict,
    },
    3: {
        "diagonal": functools.partial(diagonal, options={}),
        "kronecker": kronecker,
        "fsdp2": functools.partial(fsdp2, options={}),
        "load": functools.partial(load, source=2, dtype=torch.float32),
        "save": functools.partial(save, dtype=torch.float32),
    },
    4: {
        "diagonal": functools.partial(diagonal, options={}),
        "kronecker": kronecker,
        "hsdp": hsdp,
        "load": functools.partial(load, source=3, dtype=torch.float32),
    },
}
