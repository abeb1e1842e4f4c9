"""What a network sees of uint8 images: scaled, normalised, and while training cropped and flipped at random.

Whole batches at a time, from an explicit generator, so that a run's images depend on its seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4  # pixels on every side before a random crop back to the image's size


@dataclass(frozen=True)
class Pixels:
    """How images become floats. The default is the paper's Fashion-MNIST: divided by 255, nothing else.

    Args:
        mean: of each channel, in [0, 1]; subtracted. None: no normalisation.
        std: of each channel; divided by. Comes with ``mean``.
        crop: random crop after padding with zeros (black) or with the image's reflection. None: no crop.
        flip: mirror every other image, left to right.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: Literal["zero", "reflect"] | None = None
    flip: bool = False

    def prepared(self, images: Tensor) -> Tensor:
        """What :meth:`for_training` takes its batches from: all images (N, C, H, W) of uint8, padded once for all crops."""
        return images if self.crop is None else padded(images, self.crop)

    def for_training(self, prepared: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """The images of the indices ``batch`` as floats, with the random part."""
        device = prepared.device
        if self.crop is None:
            images = prepared[batch]
        else:
            offsets = torch.randint(2 * PADDING + 1, (2, len(batch)), generator=generator).to(device)
            images = windows(prepared)[batch, :, offsets[0], offsets[1]]
        if self.flip:
            mirrored = torch.rand(len(batch), generator=generator).to(device) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return self.for_testing(images)

    def for_testing(self, images: Tensor) -> Tensor:
        """The same without the random part.

        Example:
            >>> Pixels().for_testing(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8))
            tensor([[[[0.0000, 0.2000, 1.0000]]]])
            >>> Pixels(mean=(0.2,), std=(0.4,)).for_testing(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8))
            tensor([[[[-0.5000,  0.0000,  2.0000]]]])
        """
        floats = images.float()
        if self.mean is None or self.std is None:
            return floats.div_(255)
        mean, std = (255 * images.new_tensor(values, dtype=torch.float32)[:, None, None] for values in (self.mean, self.std))
        return floats.sub_(mean).div_(std)


def padded(images: Tensor, mode: Literal["zero", "reflect"]) -> Tensor:
    """``PADDING`` more pixels on every side. The reflection leaves out the edge itself: dcb|abcd|cba."""
    if mode == "zero":
        return pad(images, [PADDING] * 4)
    for axis in (2, 3):  # pad() reflects too, but not uint8 in every version of torch
        before = images.narrow(axis, 1, PADDING).flip(axis)
        after = images.narrow(axis, images.shape[axis] - 1 - PADDING, PADDING).flip(axis)
        images = torch.cat([before, images, after], axis)
    return images


def windows(images: Tensor) -> Tensor:
    """Every crop of every padded image, (N, C, top, left, H, W): a view, nothing is copied."""
    height, width = (size - 2 * PADDING for size in images.shape[2:])
    return images.unfold(2, height, 1).unfold(3, width, 1)


PLAIN = Pixels()
CIFAR10 = Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010), crop="zero", flip=True)
# The paper flips before it crops here. Both orders give every image the same chance.
CIFAR100 = Pixels(mean=(0.5074, 0.4867, 0.4411), std=(0.2011, 0.1987, 0.2025), crop="reflect", flip=True)
