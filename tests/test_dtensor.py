"""DTensor parameters: refused by name until the sums go over all shards, never stepped wrongly in silence."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from arturo import Arturo


def test_dtensor_is_refused(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        p = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
        p.grad = distribute_tensor(torch.ones(4), mesh, [Replicate()])
        optimizer = Arturo([p])
        with pytest.raises(RuntimeError, match=r"does not support .*DTensor parameters"):
            optimizer.step()
        assert torch.equal(p.full_tensor(), torch.ones(4))
    finally:
        dist.destroy_process_group()


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
