"""Small but real training problems of unlike kinds; each trains in at most some 90 s on one core.

A problem fixes everything but the optimizer. Seeds are paired: `build(seed)` gives every optimizer the same start and
`batches(seed)` the same batches in the same order. Adding a problem is one entry in `problems`.

`problems("validation")` evaluates on data held out from the training set and never touches the test set: choices are made
there. `problems("test")` is for reporting.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import networks
import torch
from docstrings import corpus
from torch import Tensor, nn
from torch.nn import functional as F

from arturo_lab.data import loading
from arturo_lab.tasks import models

Batches = Iterator[tuple[Tensor, Tensor]]
Arrays = tuple[Tensor, Tensor, Tensor, Tensor]  # inputs and targets to train on, inputs and targets to evaluate on
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # the mean over a batch
CONTEXT = 64  # bytes a language model sees
WORDS = 4_000  # vocabulary of the skip-gram problem
NEGATIVES = 8
WINDOW = 3


@dataclass(frozen=True)
class Problem:
    """One network, its data and the length of its training."""

    name: str
    metric: str  # what counts of `evaluate`: "accuracy" (a fraction, more is better) or "loss" (less is better)
    steps: int
    seconds: float  # of one run with AdamW on one core, measured; the progress bar weighs problems by it
    new_model: Callable[[], nn.Module]
    batches: Callable[[int], Batches]  # seed -> endless stream of (inputs, targets)
    loss: Loss
    evaluate: Callable[[nn.Module], dict[str, float]]

    def build(self, seed: int) -> nn.Module:
        """The untrained network, the same for every optimizer."""
        torch.manual_seed(seed)
        return self.new_model()


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """In nats, over however many leading dimensions: images and tokens alike."""
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def reconstruction(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of all pixels of an image, in nats."""
    pixels = x.flatten(1)
    return F.binary_cross_entropy_with_logits(model(x), pixels, reduction="sum") / len(x)


def evidence(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The negative evidence lower bound of an image, in nats."""
    logits, mean, log_variance = model(x)
    fit = F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="sum")
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (fit + kl) / len(x)


def negative_sampling(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Logistic loss of a word with one true context and NEGATIVES drawn ones; `y` has the true one first."""
    logits = model(x, y)
    truth = torch.zeros_like(logits)
    truth[:, 0] = 1
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / len(x)


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x).squeeze(-1), y)


@cache
def images(name: str, train: int | None, test: int | None, split: str) -> Arrays:
    """The first `train` images in [0, 1]; evaluated on the first `test` test images, or on the training images behind them."""
    d = loading.load(name)
    if split == "test":
        held_x, held_y = d.test_inputs[:test], d.test_targets[:test]
    elif train is None:  # all training images are used: a fifth of them is held out
        d = d.fold("1/5")
        held_x, held_y = d.test_inputs, d.test_targets
    else:
        assert test is not None
        held_x, held_y = d.train_inputs[train : train + test], d.train_targets[train : train + test]
    return d.train_inputs[:train].float().div_(255), d.train_targets[:train], held_x.float().div_(255), held_y


@cache
def table(name: str, split: str) -> Arrays:
    """A table of scikit-learn's, standardised; a fifth of the rows is for the test, another one for validation."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    fifth = len(y) // 5
    test, validation, train = order[:fifth], order[fifth : 2 * fifth], order[2 * fifth :]
    held = test if split == "test" else validation
    train = torch.cat([train, validation]) if split == "test" else train
    x = (x - x[train].mean(0)) / x[train].std(0)
    if y.dtype == torch.float64:
        y = ((y - y[train].mean()) / y[train].std()).float()
    return x[train], y[train], x[held], y[held]


def array_batches(arrays: Callable[[], Arrays], batch: int, seed: int) -> Batches:
    """Whole epochs without replacement; the incomplete last batch is dropped so that all batches weigh the same."""
    x, y, _, _ = arrays()
    generator = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(y), generator=generator).split(batch):
            if len(index) == batch:
                yield x[index], y[index]


@torch.no_grad()
def array_metrics(arrays: Callable[[], Arrays], loss: Loss, classify: bool, model: nn.Module) -> dict[str, float]:
    _, _, x, y = arrays()
    model.eval()
    parts = list(zip(x.split(500), y.split(500), strict=True))
    metrics = {"loss": sum(loss(model, a, b).double().item() * len(b) for a, b in parts) / len(y)}
    if classify:
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in parts)
        metrics["accuracy"] = right / len(y)
    model.train()
    return metrics


def text_batches(split: str, batch: int, seed: int) -> Batches:
    """Windows at random positions of the training text; the target of each byte is the next one."""
    text, _ = corpus(split)
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(CONTEXT + 1)
    while True:
        start = torch.randint(len(text) - CONTEXT, (batch, 1), generator=generator)
        window = text[start + offsets].long()
        yield window[:, :-1], window[:, 1:]


@torch.no_grad()
def text_loss(split: str, model: nn.Module) -> dict[str, float]:
    """Nats per byte over the whole held-out text, cut into windows that do not overlap."""
    _, text = corpus(split)
    count = (len(text) - 1) // CONTEXT
    inputs = text[: count * CONTEXT].view(count, CONTEXT).long()
    targets = text[1 : count * CONTEXT + 1].view(count, CONTEXT).long()
    model.eval()
    parts = zip(inputs.split(128), targets.split(128), strict=True)
    total = sum(cross_entropy(model, x, y).double().item() * y.numel() for x, y in parts)
    model.train()
    return {"loss": total / targets.numel()}


@cache
def word_pairs(split: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Words and their contexts to train on, the same held out, and the distribution of negatives (counts to the 3/4)."""
    sides = [re.findall(r"[a-z]+", bytes(side.tolist()).decode(errors="ignore").lower()) for side in corpus(split)]
    counts = Counter(sides[0]).most_common(WORDS)
    index = {word: i for i, (word, _) in enumerate(counts)}
    found: list[Tensor] = []
    for side in sides:
        ids = torch.tensor([index[word] for word in side if word in index])
        shifts = [shift for shift in range(-WINDOW, WINDOW + 1) if shift]
        inner = torch.arange(WINDOW, len(ids) - WINDOW)
        found += [ids[inner].repeat(len(shifts)), torch.cat([ids[inner + shift] for shift in shifts])]
    weights = torch.tensor([float(count) for _, count in counts]).pow(0.75)
    return found[0], found[1], found[2], found[3], weights


def pair_batches(split: str, batch: int, seed: int) -> Batches:
    words, contexts, _, _, weights = word_pairs(split)
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(words), (batch,), generator=generator)
        drawn = torch.multinomial(weights, batch * NEGATIVES, replacement=True, generator=generator).view(batch, NEGATIVES)
        yield words[chosen], torch.cat([contexts[chosen].unsqueeze(1), drawn], 1)


@torch.no_grad()
def pair_loss(split: str, model: nn.Module) -> dict[str, float]:
    _, _, words, contexts, weights = word_pairs(split)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(words), (20_000,), generator=generator)
    drawn = torch.multinomial(weights, 20_000 * NEGATIVES, replacement=True, generator=generator).view(20_000, NEGATIVES)
    return {"loss": negative_sampling(model, words[chosen], torch.cat([contexts[chosen].unsqueeze(1), drawn], 1)).item()}


@cache
def problems(split: str) -> dict[str, Problem]:
    """All problems, evaluated on the held-out part that `split` ("test" or "validation") names."""

    def on_arrays(
        name: str,
        new_model: Callable[[], nn.Module],
        arrays: Callable[[], Arrays],
        batch: int,
        steps: int,
        seconds: float,
        loss: Loss = cross_entropy,
        metric: str = "accuracy",
    ) -> Problem:
        metrics = partial(array_metrics, arrays, loss, metric == "accuracy")
        return Problem(name, metric, steps, seconds, new_model, partial(array_batches, arrays, batch), loss, metrics)

    def on_text(name: str, new_model: Callable[[], nn.Module], steps: int, seconds: float) -> Problem:
        batches, evaluate = partial(text_batches, split, 32), partial(text_loss, split)
        return Problem(name, "loss", steps, seconds, new_model, batches, cross_entropy, evaluate)

    digits = partial(images, "digits", None, None, split)
    fashion = partial(images, "fashion-mnist", 12_000, 5_000, split)
    cifar = partial(images, "cifar10", 10_000, 5_000, split)
    transformer = partial(networks.ByteTransformer, context=CONTEXT, layers=2, d_model=96, heads=4)
    as_loss: dict[str, Any] = {"metric": "loss"}
    every = (
        on_arrays("digits-mlp", models.digits_mlp, digits, 32, 2200, 3),
        on_arrays("digits-cnn", models.digits_cnn, digits, 32, 2200, 6),
        on_arrays("fmnist-cnn", models.fashion_mnist_cnn, fashion, 32, 3000, 80),
        on_arrays("small-resnet", networks.small_resnet, fashion, 32, 1500, 75),
        on_text("lm-docstrings", transformer, 1200, 80),
        on_arrays("cifar10-cnn", models.cifar_cnn, cifar, 64, 800, 60),
        on_arrays("vision-transformer", networks.VisionTransformer, cifar, 64, 700, 60),
        on_text("gru-docstrings", partial(networks.ByteGRU, 32, 128), 800, 40),
        on_arrays("autoencoder", networks.autoencoder, fashion, 64, 1000, 10, reconstruction, **as_loss),
        on_arrays("vae", networks.VariationalAutoencoder, fashion, 128, 800, 10, evidence, **as_loss),
        Problem(
            "skip-gram", "loss", 2000, 20, partial(networks.SkipGram, WORDS), partial(pair_batches, split, 256),
            negative_sampling, partial(pair_loss, split),
        ),
        on_arrays("digits-mlp-batch-1", models.digits_mlp, digits, 1, 6000, 6, **as_loss),
        on_arrays("breast-cancer", partial(nn.Linear, 30, 2), partial(table, "breast_cancer", split), 32, 600, 1, **as_loss),
        on_arrays("diabetes", networks.tabular_mlp, partial(table, "diabetes", split), 32, 600, 1, squared_error, **as_loss),
    )  # fmt: skip
    return {problem.name: problem for problem in every}
