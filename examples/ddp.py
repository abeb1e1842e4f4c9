"""Data-parallel training: every process has the whole model and a part of each batch.

torchrun --nproc-per-node 2 examples/ddp.py

The optimizer needs no change: DistributedDataParallel gives every process the same gradient, so all take the same step. Give
every process the same number of threads, as torchrun does: the last bits of matrix products depend on it, and replicas whose
steps differ drift apart.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from arturo import AdaArturo

EPOCHS, BATCH = 10, 64  # images of a batch over all processes


def main() -> None:
    dist.init_process_group("gloo")  # nccl on GPUs
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = (torch.as_tensor(x) for x in load_digits(return_X_y=True))
    images = images.float() / 16
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = AdaArturo(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    for epoch in range(EPOCHS):
        for batch in torch.randperm(1500).split(BATCH):
            mine = batch.tensor_split(world)[rank]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
        scheduler.step()
        if rank == 0:
            right = model.module(images[1500:]).argmax(1) == labels[1500:]
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {right.float().mean():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
