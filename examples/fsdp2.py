"""Sharded training: every process has a part of the weights, of the optimizer's state and of each batch. With checkpoints.

torchrun --nproc-per-node 2 --max-restarts 3 examples/fsdp2.py

(With --standalone, restarts on gloo need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment: torch 2.13 hangs otherwise.)
Nothing changes for the optimizer: its parameters are DTensors, it works on the local shards, and only sums travel. There is
one trust region for the whole model. Run it again to resume from the last checkpoint, on any number of processes: matrices
whose shards are cut otherwise then learn their bases anew, with one warning that names them.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from arturo import AdaArturo
from arturo.checkpoint import load_planner

BATCH = 64  # images over all processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, default=Path("fsdp2-checkpoints"), help="a folder")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")  # nccl on GPUs
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = (torch.as_tensor(x) for x in load_digits(return_X_y=True))
    images = images.float() / 16
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = AdaArturo(model.parameters(), lr=3e-3)

    done = max((int(x.name) for x in arguments.checkpoints.glob("*") if (x / ".metadata").exists()), default=0)
    if done:
        weights, state = get_state_dict(model, optimizer)
        saved = arguments.checkpoints / str(done)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=saved, planner=load_planner())
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)

    for epoch in range(done + 1, arguments.epochs + 1):
        for batch in torch.randperm(1500, generator=torch.Generator().manual_seed(epoch)).split(BATCH):
            mine = batch.tensor_split(world)[rank]
            optimizer.zero_grad()
            # FSDP2 averages over the processes; scaled like this it is the mean over the batch, whatever their number.
            loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum") * world / len(batch)
            loss.backward()
            optimizer.step()
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=arguments.checkpoints / str(epoch))
        right = model(images[1500:]).argmax(1) == labels[1500:]  # all processes must join: each holds a part of the weights
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right.float().mean():.3f}", flush=True)
    dist.barrier()  # nobody leaves while gloo's threads still hold tensors of the last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
