"""A data set in memory: inputs and targets to train on, inputs and targets to test on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from arturo_lab.data.folds import Fold
from arturo_lab.errors import ConfigError

TENSORS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


@dataclass(frozen=True)
class Examples:
    """Examples with their fixed train/test split: images with labels, rows of a table with values, and so on.

    Images are uint8 (N, C, H, W), labels int64 (N,). Whatever else a network takes is fine as well: a task's ``inputs``
    turn one batch at a time into it.
    """

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int | None = None  # None: the targets are no classes

    def __len__(self) -> int:
        """How many examples there are to train on."""
        return len(self.train_targets)

    def subset(self, n: int | None) -> Self:
        """The first ``n`` training examples of one fixed shuffled order, with the whole test set. None: all of them.

        The order does not depend on any seed: every run sees the same ``n`` examples, and a smaller subset lies inside a
        larger one. Classes are as balanced as chance makes them.
        """
        if n is None:
            return self
        self.check_subset(n)
        # NumPy guarantees the legacy RandomState stream for good.
        chosen = torch.from_numpy(np.random.RandomState(0).permutation(len(self))[:n])
        return replace(self, train_inputs=self.train_inputs[chosen], train_targets=self.train_targets[chosen])

    def fold(self, name: str | None) -> Self:
        """Cross-validation: ``"2/8"`` holds out the second of eight parts of the training examples and tests on it.

        The test examples are not in what it returns: nothing that is chosen by its numbers can have seen them. None: as it is.
        """
        if name is None:
            return self
        out = Fold.parse(name).held_out(self.train_targets)
        inputs, targets = self.train_inputs, self.train_targets
        return replace(
            self,
            train_inputs=inputs[~out],
            train_targets=targets[~out],
            test_inputs=inputs[out],
            test_targets=targets[out],
        )

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})

    def content(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that say all of it, by name."""
        for name in TENSORS:
            yield name, getattr(self, name)

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any number in it."""
        result = hashlib.sha256()
        for name, tensor in self.content():
            result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            result.update(tensor.cpu().contiguous().numpy().tobytes())
        return result.hexdigest()[:16]

    def check_subset(self, n: int) -> None:
        if not 1 <= n <= len(self):
            raise ConfigError(f"subset: {self.name} has {len(self)} training examples, got {n}")
