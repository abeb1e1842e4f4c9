"""Augmentation, against the slow and obvious version of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from arturo_lab.data.augment import CIFAR10, CIFAR100, PLAIN, Pixels, padded, windows


def noise(n: int, channels: int = 3, side: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, channels, side, side), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_padding_is_numpys(mode: str) -> None:
    images = noise(3, side=9)
    widths = ((0, 0), (0, 0), (4, 4), (4, 4))
    expected = np.pad(images.numpy(), widths, mode="constant" if mode == "zero" else "reflect")
    np.testing.assert_array_equal(padded(images, mode).numpy(), expected)


def test_windows_are_all_crops() -> None:
    images = padded(noise(2), "zero")
    crops = windows(images)
    assert crops.shape == (2, 3, 9, 9, 32, 32)
    for top, left in ((0, 8), (8, 0), (4, 4), (3, 7)):
        assert torch.equal(crops[:, :, top, left], images[:, :, top : top + 32, left : left + 32])


def seen(pixels: Pixels, images: Tensor, generator: torch.Generator) -> Tensor:
    """One batch of all images."""
    return pixels.for_training(pixels.prepared(images), torch.arange(len(images)), generator)


@pytest.mark.parametrize("pixels", [CIFAR10, CIFAR100, PLAIN])
def test_batch_is_by_index(pixels: Pixels) -> None:
    """Images of one colour stay what they are under reflected crops and mirrors, and in the middle under all of them."""
    images = torch.arange(200, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32)
    batch = torch.tensor([7, 150, 7, 0])
    drawn = pixels.for_training(pixels.prepared(images), batch, torch.Generator().manual_seed(0))
    assert torch.equal(drawn[:, :, 16, 16], pixels.for_testing(images[batch])[:, :, 16, 16])


@pytest.mark.parametrize("pixels", [CIFAR10, CIFAR100])
def test_training_images_are_crops_and_mirrors_of_the_padded_ones(pixels: Pixels) -> None:
    """Every image that comes out is one of the 2 * 81 that can; all offsets and both sides occur, and about as often."""
    image = noise(1)
    batch = pixels.for_training(pixels.prepared(image), torch.zeros(4000, dtype=torch.long), torch.Generator().manual_seed(0))
    assert pixels.crop is not None
    crops = windows(padded(image, pixels.crop))[0].permute(1, 2, 0, 3, 4).reshape(81, 3, 32, 32)
    possible = pixels.for_testing(torch.cat([crops, crops.flip(3)]))
    known = {candidate.numpy().tobytes(): i for i, candidate in enumerate(possible)}
    drawn = torch.bincount(torch.tensor([known[x.numpy().tobytes()] for x in batch]), minlength=162)
    assert drawn.min() > 0
    assert abs(int(drawn[:81].sum()) - 2000) < 160  # five standard deviations
    assert (drawn[:81] + drawn[81:]).max() < 100  # 49 expected


@pytest.mark.parametrize(("pixels", "mean", "std"), [
    (CIFAR10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    (CIFAR100, (0.5074, 0.4867, 0.4411), (0.2011, 0.1987, 0.2025)),
])  # fmt: skip
def test_normalisation(pixels: Pixels, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    images = noise(2)
    expected = (images.double() / 255 - torch.tensor(mean).double()[:, None, None]) / torch.tensor(std).double()[:, None, None]
    floats = pixels.for_testing(images)
    assert floats.dtype == torch.float32
    torch.testing.assert_close(floats.double(), expected, rtol=1e-5, atol=1e-6)


def test_plain_is_a_division_and_leaves_the_images_alone() -> None:
    images = noise(2, channels=1, side=28)
    before = images.clone()
    assert torch.equal(seen(PLAIN, images, torch.Generator()), images / 255)
    assert torch.equal(images, before)


def test_the_generator_decides() -> None:
    images = noise(16)
    first, again, other = (seen(CIFAR10, images, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    state = torch.get_rng_state()
    seen(CIFAR10, images, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)  # dropout's numbers are not touched
