"""The small networks of the laboratory; the ResNets are in :mod:`arturo_lab.tasks.resnet`. Float images in, logits out."""

from __future__ import annotations

from torch import nn


def digits_mlp(num_classes: int = 10) -> nn.Sequential:
    """64 - 128 - 128 - classes with ReLU, for the 8x8 digits (26,122 weights): trains in seconds."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


def digits_cnn(num_classes: int = 10) -> nn.Sequential:
    """Two convolutions and two linear layers for the 8x8 digits (13,706 weights).

    No dropout, so that a run is deterministic but for its start and its batch order.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def fashion_mnist_cnn(num_classes: int = 10) -> nn.Sequential:
    """The paper's Fashion-MNIST CNN (390,410 weights): unpadded convolutions, dropout after every layer."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3),  # 28 -> 26
        nn.ReLU(),
        nn.MaxPool2d(2),  # 13
        nn.Dropout(0.2),
        nn.Conv2d(32, 64, kernel_size=3),  # 11
        nn.ReLU(),
        nn.MaxPool2d(2),  # 5
        nn.Dropout(0.2),
        nn.Conv2d(64, 128, kernel_size=3),  # 3
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),  # 128 * 3 * 3 = 1152
        nn.Linear(1152, 256),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(256, num_classes),
    )


def fashion_mnist_small_cnn(num_classes: int = 10) -> nn.Sequential:
    """A smaller Fashion-MNIST CNN (14,410 weights), where the exact Hessian diagonal is cheap. No dropout.

    The paper has "a smaller network" in its second ablation and does not say which; this one is ours.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3),  # 28 -> 26
        nn.ReLU(),
        nn.MaxPool2d(2),  # 13
        nn.Conv2d(8, 16, kernel_size=3),  # 11
        nn.ReLU(),
        nn.MaxPool2d(2),  # 5
        nn.Flatten(),  # 16 * 5 * 5 = 400
        nn.Linear(400, 32),
        nn.ReLU(),
        nn.Linear(32, num_classes),
    )


def cifar_cnn(num_classes: int = 10) -> nn.Sequential:
    """The paper's CIFAR CNN (653,386 weights for 10 classes): four padded convolutions, dropout after every layer."""
    blocks: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256)):  # 32 -> 16 -> 8 -> 4 -> 2
        blocks += [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2)]
    return nn.Sequential(
        *blocks,
        nn.Flatten(),  # 256 * 2 * 2 = 1024
        nn.Linear(1024, 256),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(256, num_classes),
    )
