"""One training, from the seed to the last test accuracy. Reads top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from arturo import Arturo
from arturo.lab.config import RunConfig
from arturo.lab.data import ImageData
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.tasks import TASKS

EVALUATION_BATCH = 1000  # bounds memory; has no part in the result


@dataclass(frozen=True)
class EpochMetrics:
    """What one epoch measured. Accuracies are fractions, losses nats per image."""

    epoch: int  # 1 is the first
    train_loss: float  # mean over the epoch's images, each before the step that used it, dropout on
    test_loss: float
    test_accuracy: float
    seconds: float  # of training, without the evaluation
    kl_over_bound: float | None = None  # arTuRO only: mean over the steps of the mean's KL / its bound
    eta: float | None = None  # arTuRO only: mean over the steps of the multiplier


def train(
    config: RunConfig, data: ImageData, on_epoch: Callable[[EpochMetrics], None] | None = None
) -> tuple[EpochMetrics, ...]:
    """Train ``config.task``'s network on ``data``; call ``on_epoch`` after every epoch.

    Runs that share a seed share the initial weights, the batch order and the dropout masks, whatever the optimizer:
    their difference is the optimizer's. The caller's random state and thread count are left as they were.
    """
    task = TASKS[config.task]
    history: list[EpochMetrics] = []

    with torch.random.fork_rng(devices=[]), cpu_threads(task.threads):
        torch.manual_seed(config.seed)  # initial weights, then dropout
        shuffle = torch.Generator().manual_seed(config.seed)  # its own, so that dropout cannot shift the batch order
        model = task.model()
        optimizer = OPTIMIZERS[config.optimizer].build(model.parameters(), task)

        images = len(data.train_labels)
        steps = math.ceil(images / config.batch_size)
        total_steps = steps * config.epochs
        scheduler = LambdaLR(optimizer, lambda step: task.schedule(step / total_steps))

        for epoch in range(1, config.epochs + 1):
            start = time.perf_counter()
            model.train()
            loss_sum = kl_over_bound = eta = 0.0
            for batch in torch.randperm(images, generator=shuffle).split(config.batch_size):
                optimizer.zero_grad()
                loss = cross_entropy(model(pixels(data.train_images[batch])), data.train_labels[batch])
                loss.backward()
                optimizer.step()
                scheduler.step()

                loss_sum += loss.item() * len(batch)
                if isinstance(optimizer, Arturo):
                    info = optimizer.last_step
                    kl_over_bound += info.kl / info.bound if info.bound else 0.0  # lr = 0: nothing moves
                    eta += info.eta
            seconds = time.perf_counter() - start

            metrics = EpochMetrics(
                epoch,
                loss_sum / images,
                *evaluate(model, data.test_images, data.test_labels),
                seconds,
                *((kl_over_bound / steps, eta / steps) if isinstance(optimizer, Arturo) else ()),
            )
            history.append(metrics)
            if on_epoch is not None:
                on_epoch(metrics)

    return tuple(history)


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean cross-entropy and accuracy of ``model`` in evaluation mode."""
    model.eval()
    loss, correct = 0.0, 0
    for x, y in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
        logits = model(pixels(x))
        loss += cross_entropy(logits, y, reduction="sum").item()
        correct += int((logits.argmax(dim=1) == y).sum())
    return loss / len(labels), correct / len(labels)


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads inside the block; None leaves the choice to torch."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pixels(images: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1], the input of every network here. No normalisation, as in the paper."""
    return images.float().div_(255)
