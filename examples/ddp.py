"""Data-parallel training: every process has the whole model and a part of each batch.

torchrun --nproc-per-node 2 examples/ddp.py

The optimizer needs no change: DistributedDataParallel gives every process the same gradient, so all take the same step.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from arturo import Arturo

EPOCHS, BATCH = 10, 64  # images of a batch over all processes


def main() -> None:
    dist.init_process_group("gloo")  # nccl on GPUs
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = (torch.as_tensor(x) for x in load_digits(return_X_y=True))
    images = images.float() / 16
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = Arturo(model.parameters())
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
            info = optimizer.last_step
            print(f"epoch {epoch + 1}: accuracy {right.float().mean():.3f}, KL {info.kl:.2e} of {info.bound:.2e} nats")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
