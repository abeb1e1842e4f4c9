"""Five small but real training problems of different kinds; each trains in at most some 90 s on one core.

A problem fixes everything but the optimizer. Seeds are paired: `build(seed)` gives every optimizer the same start and
`batches(seed)` the same batches in the same order. Adding a problem is one entry in PROBLEMS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from docstrings import corpus
from networks import ByteTransformer, small_resnet
from torch import Tensor, nn
from torch.nn import functional as F

from arturo.lab import data, models

Batches = Iterator[tuple[Tensor, Tensor]]
CONTEXT = 64  # bytes the language model sees


@dataclass(frozen=True)
class Problem:
    """One network, its data and the length of its training."""

    name: str
    metric: str  # what counts of `evaluate`: "accuracy" (a fraction, more is better) or "loss" (nats, less is better)
    steps: int
    seconds: float  # of one run with AdamW on one core, measured; the progress bar weighs problems by it
    new_model: Callable[[], nn.Module]
    batches: Callable[[int], Batches]  # seed -> endless stream of (inputs, targets)
    evaluate: Callable[[nn.Module], dict[str, float]]

    def build(self, seed: int) -> nn.Module:
        """The untrained network, the same for every optimizer."""
        torch.manual_seed(seed)
        return self.new_model()


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """In nats, over however many leading dimensions: images and tokens alike."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)


@cache
def images(name: str, train: int | None, test: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first `train` and `test` images of a data set as float32 in [0, 1]; None takes all."""
    d = data.load(name)
    return (
        d.train_images[:train].float().div_(255),
        d.train_labels[:train],
        d.test_images[:test].float().div_(255),
        d.test_labels[:test],
    )


def image_batches(name: str, train: int | None, test: int | None, batch: int, seed: int) -> Batches:
    """Whole epochs without replacement; the incomplete last batch is dropped so that all batches weigh the same."""
    x, y, _, _ = images(name, train, test)
    generator = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(y), generator=generator).split(batch):
            if len(index) == batch:
                yield x[index], y[index]


@torch.no_grad()
def image_accuracy(name: str, train: int | None, test: int | None, model: nn.Module) -> dict[str, float]:
    _, _, x, y = images(name, train, test)
    model.eval()
    logits = torch.cat([model(part) for part in x.split(500)])
    model.train()
    return {
        "accuracy": (logits.argmax(1) == y).double().mean().item(),
        "loss": cross_entropy(logits.double(), y).item(),
    }


def text_batches(batch: int, seed: int) -> Batches:
    """Windows at random positions of the training text; the target of each byte is the next one."""
    text, _ = corpus()
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(CONTEXT + 1)
    while True:
        start = torch.randint(len(text) - CONTEXT, (batch, 1), generator=generator)
        window = text[start + offsets].long()
        yield window[:, :-1], window[:, 1:]


@torch.no_grad()
def text_loss(model: nn.Module) -> dict[str, float]:
    """Nats per byte over the whole validation text, cut into windows that do not overlap."""
    _, text = corpus()
    count = (len(text) - 1) // CONTEXT
    inputs = text[: count * CONTEXT].view(count, CONTEXT).long()
    targets = text[1 : count * CONTEXT + 1].view(count, CONTEXT).long()
    model.eval()
    parts = zip(inputs.split(128), targets.split(128), strict=True)
    total = sum(cross_entropy(model(x), y, "sum").double().item() for x, y in parts)
    model.train()
    return {"loss": total / targets.numel()}


def image_problem(
    name: str,
    new_model: Callable[[], nn.Module],
    subset: tuple[str, int | None, int | None],
    batch: int,
    steps: int,
    seconds: float,
) -> Problem:
    return Problem(
        name,
        metric="accuracy",
        steps=steps,
        seconds=seconds,
        new_model=new_model,
        batches=partial(image_batches, *subset, batch),
        evaluate=partial(image_accuracy, *subset),
    )


DIGITS = ("digits", None, None)
FASHION = ("fashion-mnist", 12_000, 5_000)

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        image_problem("digits-mlp", models.digits_mlp, DIGITS, batch=32, steps=2200, seconds=3),
        image_problem("digits-cnn", models.digits_cnn, DIGITS, batch=32, steps=2200, seconds=6),
        image_problem("fmnist-cnn", models.fashion_mnist_cnn, FASHION, batch=32, steps=3000, seconds=80),
        image_problem("small-resnet", small_resnet, FASHION, batch=32, steps=1500, seconds=75),
        Problem(
            "lm-docstrings",
            metric="loss",
            steps=1200,
            seconds=80,
            new_model=partial(ByteTransformer, context=CONTEXT, layers=2, d_model=96, heads=4),
            batches=partial(text_batches, 32),
            evaluate=text_loss,
        ),
    )
}
