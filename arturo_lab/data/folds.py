"""Cross-validation: the training images in K parts, each held out once. The test images have no part in it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from arturo_lab.errors import ConfigError


class Fold(NamedTuple):
    """One way to hold out a part. Written ``2/8``: the second of eight.

    Example:
        >>> Fold.parse("2/8")
        Fold(number=2, parts=8)
        >>> Fold.parse("9/8")
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: fold: must be k/K with 1 <= k <= K and K >= 2, such as 2/8, got '9/8'
    """

    number: int  # 1 is the first
    parts: int

    @classmethod
    def parse(cls, text: str, key: str = "fold") -> Fold:
        """``key`` is what the user calls it."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text) if isinstance(text, str) else None
        fold = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not (1 <= fold.number <= fold.parts and fold.parts >= 2):
            raise ConfigError(f"{key}: must be k/K with 1 <= k <= K and K >= 2, such as 2/8, got {text!r}")
        return fold

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def training_images(self, images: int) -> int:
        """How many of so many are left to train on.

        Example:
            >>> [Fold(k, 3).training_images(10) for k in (1, 2, 3)]
            [6, 7, 7]
        """
        return images - len(range(self.number - 1, images, self.parts))

    def held_out(self, labels: Tensor) -> Tensor:
        """True at the images that are held out: every class in the same share, whatever the order of the images.

        The parts depend on no seed, so every run of a search sees the same ones; no image is in two of them.
        """
        # NumPy guarantees the legacy RandomState stream for good. Another seed than that of subsets: the two are independent.
        order = torch.from_numpy(np.random.RandomState(1).permutation(len(labels)))
        by_class = order[torch.argsort(labels.cpu()[order], stable=True)]
        result = torch.zeros(len(labels), dtype=torch.bool)
        result[by_class[self.number - 1 :: self.parts]] = True
        return result.to(labels.device)
