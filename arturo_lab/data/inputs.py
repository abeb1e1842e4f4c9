"""What a network gets of the training inputs, a batch at a time. For images: :class:`arturo_lab.data.augment.Pixels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from arturo_lab.data.docstrings import frequencies, with_negatives


class Inputs(Protocol):
    """How inputs as they are stored become inputs as a network takes them."""

    def prepared(self, inputs: Tensor) -> Any:
        """All training inputs, made ready once."""

    def for_training(self, prepared: Any, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Those of the indices ``batch``; whatever is random comes from ``generator``."""

    def for_testing(self, inputs: Tensor) -> Tensor:
        """Some test inputs; nothing is random."""


@dataclass(frozen=True)
class AsStored:
    """Nothing is done, except that bytes become the integers that an embedding takes."""

    def prepared(self, inputs: Tensor) -> Tensor:
        return inputs

    def for_training(self, prepared: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        return self.for_testing(prepared[batch])

    def for_testing(self, inputs: Tensor) -> Tensor:
        return inputs.long() if inputs.dtype == torch.uint8 else inputs


@dataclass(frozen=True)
class WithNegatives:
    """Pairs of words, each with drawn words beside it. The test inputs have theirs already."""

    def prepared(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, frequencies(inputs).cpu()

    def for_training(self, prepared: tuple[Tensor, Tensor], batch: Tensor, generator: torch.Generator) -> Tensor:
        pairs, weights = prepared
        return with_negatives(pairs[batch], weights, generator)

    def for_testing(self, inputs: Tensor) -> Tensor:
        return inputs
