"""The smallest real training with arTuRO: a network on scikit-learn's digits, ten seconds on a laptop.

    python examples/quickstart.py

The only line that differs from a training with AdamW is the one that makes the optimizer.
"""

import torch
from torch.nn.functional import cross_entropy

from arturo import Arturo
from arturo_lab.data import loading
from arturo_lab.tasks import models

EPOCHS, BATCH = 20, 32


def main() -> None:
    torch.manual_seed(0)
    digits = loading.load("digits")
    images, labels = digits.train_inputs.float() / 255, digits.train_targets
    model = models.digits_mlp()

    optimizer = Arturo(model.parameters())  # was: torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = EPOCHS * (len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    for epoch in range(EPOCHS):
        for index in torch.randperm(len(labels)).split(BATCH)[: len(labels) // BATCH]:
            optimizer.zero_grad()
            loss = cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimizer.step()
            schedule.step()
        info = optimizer.last_step
        print(f"epoch {epoch + 1:2d}  loss {loss.item():.4f}  eta {info.eta:9.2f}  KL {info.kl:.2e} of {info.bound:.2e} nats")

    with torch.no_grad():
        right = model(digits.test_inputs.float() / 255).argmax(1) == digits.test_targets
    print(f"test accuracy {right.float().mean().item():.1%}")


if __name__ == "__main__":
    main()
