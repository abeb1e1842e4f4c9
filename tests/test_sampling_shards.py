"""Draws of DTensors: every process keeps its shard of the draw that one process alone would make."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from arturo import Posterior
from arturo.posterior import Weight

MEAN = torch.arange(15, dtype=torch.float32).view(5, 3)


def posterior(mean, a, param=None):
    return Posterior({"w": Weight(mean, a, 1.0, torch.float32, param)}, ess=4.0)


def whole_draw(seed=3):
    return posterior(MEAN, torch.ones(5, 3)).sample(torch.Generator().manual_seed(seed))["w"]


def check(mesh):
    for placement in (Shard(0), Shard(1), Replicate()):
        p = nn.Parameter(distribute_tensor(MEAN.clone(), mesh, [placement], src_data_rank=None))
        mine = posterior(p.detach().clone(), torch.ones_like(p.detach()), p)
        draw = mine.sample(torch.Generator().manual_seed(3))["w"]
        assert isinstance(draw, DTensor) and torch.equal(draw.full_tensor(), whole_draw())
        exact = posterior(MEAN, torch.ones(5, 3)).log_prob({"w": whole_draw()})
        assert mine.log_prob({"w": draw}) == pytest.approx(exact)
        with mine.sampled_params(generator=torch.Generator().manual_seed(3)):
            assert torch.equal(p.detach().full_tensor(), whole_draw())
        assert torch.equal(p.detach().full_tensor(), MEAN)
        with pytest.raises(RuntimeError, match="same seed on every rank"):
            mine.sample()


def process(rank, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        check(init_device_mesh("cpu", (2,)))
    finally:
        dist.destroy_process_group()


def test_two_processes(tmp_path):
    """This file is their program."""
    command = [sys.executable, __file__]
    others = [subprocess.Popen([*command, str(rank), f"file://{tmp_path}/meeting"]) for rank in range(2)]
    assert [other.wait(timeout=300) for other in others] == [0, 0]


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
