"""What a method may look at: trained networks, training and held-out images, and how much work it may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim import Optimizer

from arturo_lab.data.examples import Examples
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import as_arguments
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.run import RunFolder
from arturo_lab.tasks.catalog import TASKS

Predictor = Callable[[Tensor], Tensor]  # uint8 images -> probabilities (N, C) in float64
ELSEWHERE = {"fashion-mnist": "digits", "digits": "fashion-mnist", "cifar10": "cifar100", "cifar100": "cifar10"}
BATCH = 500  # bounds memory; has no part in the result


@dataclass(frozen=True)
class Trained:
    """A network as its training left it."""

    config: RunConfig
    model: nn.Module  # in evaluation mode
    optimizer: Optimizer

    @classmethod
    def load(cls, config: RunConfig, out: Path) -> Trained:
        """From its run folder."""
        captured = RunFolder(out / config.folder, config).read_checkpoint()
        device, entry = torch.device(config.machine.device), OPTIMIZERS[config.optimizer]
        with torch.random.fork_rng([]):  # the constructor draws initial weights
            model = TASKS[config.task].model().to(device)
            optimizer = entry.load()(model.parameters(), **as_arguments(config.settings))
        model.load_state_dict(captured["model"])
        optimizer.load_state_dict(captured["optimizer"])
        for name, value in captured["forgotten"].items():
            setattr(optimizer, name, value)
        entry.mode(optimizer, False)
        return cls(config, model.eval(), optimizer)

    def inputs(self, images: Tensor) -> Tensor:
        """Images as the network takes them."""
        return TASKS[self.config.task].inputs.for_testing(images.to(self.config.machine.device))

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """One pass, with every module in the mode it is in."""
        outputs = [self.model(self.inputs(part)).double().softmax(1) for part in images.split(BATCH)]
        return torch.cat(outputs).cpu()


@dataclass(frozen=True)
class Work:
    """How much a method may do. Has a part in the result."""

    samples: int  # draws of a prediction
    tuning_samples: int  # draws of each candidate
    curvature_images: int
    temperatures: tuple[float, ...]
    prior_precisions: tuple[float, ...]
    seed: int


@dataclass(frozen=True)
class Images:
    """The images."""

    train_images: Tensor
    train_labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    elsewhere: Tensor | None  # test images of another data set, made to fit

    @classmethod
    def split(cls, data: Examples, subset: int, held_out: int, test: int | None, other: Examples | None) -> Images:
        """Trained on are the first ``subset`` of the fixed order, as in every run; held out the next ones."""
        images = len(data.train_targets)
        if held_out < 1 or subset + held_out > images:
            raise ConfigError(
                f"held-out: {subset} training images and {held_out} held out do not fit into the {images} of {data.name}; "
                "lower --subset or --held-out"
            )
        if test is not None and not 1 <= test <= len(data.test_targets):
            raise ConfigError(f"test-images: {data.name} has {len(data.test_targets)}, got {test}")
        both = data.subset(subset + held_out)
        elsewhere = None
        if other is not None:
            few = torch.cat([other.test_inputs, other.train_inputs])[: len(data.test_targets[:test])]
            elsewhere = fitted(few, data.test_inputs.shape[1:])
        return cls(
            both.train_inputs[:subset],
            both.train_targets[:subset],
            both.train_inputs[subset:],
            both.train_targets[subset:],
            data.test_inputs[:test],
            data.test_targets[:test],
            elsewhere,
        )


def fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images in another height and width, bilinear; uint8 as before.

    Example:
        >>> fitted(torch.tensor([[[[0, 100], [100, 200]]]], dtype=torch.uint8), (1, 1, 1)).item()
        100
    """
    if images.shape[1] != shape[0]:
        raise ConfigError(f"elsewhere: images of {images.shape[1]} channels do not fit a network for {shape[0]}")
    resized = interpolate(images.float(), size=tuple(shape[1:]), mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)
