"""The smallest training with AdaArturo: which of three spirals does a point lie on? Needs torch alone; a few seconds.

    python examples/quickstart.py

The only line that differs from a training with AdamW is the one that makes the optimizer.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from arturo import AdaArturo

EPOCHS, BATCH = 20, 32


def spirals(n: int) -> tuple[Tensor, Tensor]:
    """Points of three spirals that wind around each other once, and which spiral each is on."""
    label = torch.arange(n) % 3
    radius = torch.rand(n).sqrt()
    angle = 2 * math.pi * (radius + label / 3) + 0.15 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label


def main() -> None:
    torch.manual_seed(0)
    points, labels = spirals(1500)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    optimizer = AdaArturo(model.parameters(), lr=1e-3)  # was: torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = EPOCHS * (len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    for epoch in range(EPOCHS):
        for index in torch.randperm(len(labels)).split(BATCH)[: len(labels) // BATCH]:
            optimizer.zero_grad()
            loss = cross_entropy(model(points[index]), labels[index])
            loss.backward()
            optimizer.step()
            schedule.step()
        info = optimizer.last_step
        print(f"epoch {epoch + 1:2d}  loss {loss.item():.4f}  eta {info.eta:6.2f}  KL {info.kl:.2e} of {info.bound:.2e} nats")

    points, labels = spirals(3000)
    with torch.no_grad():
        right = model(points).argmax(1) == labels
    print(f"test accuracy {right.float().mean().item():.1%}")


if __name__ == "__main__":
    main()
