"""DTensors and DDP in a single process: the same bits as plain parameters. tests/distributed has several processes."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from arturo import Arturo, sharding

BASES = ("L", "R", "Q_L", "Q_R")  # of AdaArturo: a tile's, not like the parameter


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_dtensors_of_one_process(mesh, placement, way, quadratic):
    """No collective, every bit that of plain parameters, and state like the parameter; half precision and complex ones too."""
    vectors = [] if placement == Shard(1) else quadratic.params([(5,)]) + quadratic.params([(3,)], torch.bfloat16)
    plain = (
        quadratic.params([(4, 6), (3, 5)])
        + quadratic.params([(3, 4)], torch.bfloat16)
        + quadratic.params([(2, 2)], torch.complex64)
        + vectors
    )
    sharded = [torch.nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [placement])) for p in plain]
    one, many = way(plain), way(sharded)
    for t in range(6):
        quadratic.gradients(plain, t)
        for p, q in zip(plain, sharded, strict=True):
            q.grad = distribute_tensor(p.grad, mesh, [placement])
        one.step()
        with CommDebugMode() as seen:
            many.step()
        assert seen.get_total_counts() == 0 and many.last_step == one.last_step
        if t == 3:
            many.load_state_dict(copy.deepcopy(many.state_dict()))
    for p, q in zip(plain, sharded, strict=True):
        assert torch.equal(q.full_tensor(), p) and set(one.state[p]) == set(many.state[q])
        for name, x in one.state[p].items():
            y = many.state[q][name]
            assert sharding.is_sharded(y) == (x.dim() > 0 and name != "tile")
            assert torch.equal(y.full_tensor() if sharding.is_sharded(y) else y, x), name
            if sharding.is_sharded(y) and name not in BASES:
                assert y.placements == q.placements


def test_whole_state_is_not_loaded_into_shards(mesh):
    p, q = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    p.grad = torch.ones(4)
    plain, sharded = Arturo([p]), Arturo([q])
    plain.step()
    with pytest.raises(ValueError, match=r"a DTensor: load whole state with .*set_optimizer_state_dict"):
        sharded.load_state_dict(plain.state_dict())


def test_state_of_shards_survives_a_state_dict(mesh):
    q = torch.nn.Parameter(distribute_tensor(torch.ones(4, dtype=torch.bfloat16), mesh, [Shard(0)]))
    q.grad = distribute_tensor(torch.ones(4, dtype=torch.bfloat16), mesh, [Shard(0)])
    first, second = Arturo([q]), Arturo([q])
    first.step()
    second.load_state_dict(first.state_dict())
    for name, x in first.state[q].items():
        y = second.state[q][name]
        assert type(x) is type(y) and x.dtype == y.dtype
        assert torch.equal(x, y) if x.dim() == 0 else torch.equal(x.to_local(), y.to_local())
    assert second.state[q]["mean"].dtype == torch.float32


def test_groups_of_processes_that_overlap_are_refused(monkeypatch):
    """No process could count for all. The meshes are stand-ins: their process groups are lists of ranks."""

    class Mesh:
        device_type = "cpu"

        def __init__(self, ranks):
            self.mesh = torch.tensor(ranks)

        def get_coordinate(self):
            return (0,)

        def size(self, dim):
            return len(self.mesh)

        def get_group(self, dim):
            return self.mesh.tolist()

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_process_group_ranks", list)
    with pytest.raises(RuntimeError, match=r"\[0, 1, 2\] and \[0, 1, 3\]"):
        sharding.Shards([SimpleNamespace(device_mesh=Mesh(ranks), placements=(Shard(0),)) for ranks in ([0, 1, 2], [0, 1, 3])])


def test_plain_parameters_need_no_processes(monkeypatch, kernel, quadratic):
    """Nobody asks for a process group, and none is there."""
    monkeypatch.setattr(sharding, "Shards", None)
    assert sharding.find([{"params": quadratic.params()}]) is None
    assert quadratic.train(Arturo(quadratic.params(), **kernel), 1)[0].kl > 0


def test_distributed_data_parallel(tmp_path):
    """DDP needs nothing: one process, wrapped or not, the same bits."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        plain = torch.nn.Linear(3, 2)
        wrapped = torch.nn.Linear(3, 2)
        wrapped.load_state_dict(plain.state_dict())
        models = plain, torch.nn.parallel.DistributedDataParallel(wrapped)
        optimizers = [Arturo(model.parameters()) for model in models]
        for _ in range(5):
            x = torch.randn(8, 3)
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), wrapped.parameters(), strict=True))
        assert optimizers[0].last_step == optimizers[1].last_step
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("surrogate", ["hutchinson", "hessian", "ggn"])
def test_no_diagonal_of_shards(mesh, surrogate):
    """The error says so before anything moves."""
    p = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    optimizer = Arturo([p], surrogate=surrogate)
    p.grad = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match=rf"surrogate='{surrogate}' does not support sharded parameters \(DTensor\)"):
        optimizer.step()
    assert torch.equal(p.full_tensor(), torch.ones(4))
