"""In which order a training sees its examples. From the run's own generator: dropout cannot shift it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from arturo_lab.tasks.task import Task


@dataclass
class Order:
    """Indices of training examples, epoch by epoch.

    Example:
        >>> task = Task("", "digits", torch.nn.Identity, epochs=2, epoch_steps=2)
        >>> order = Order(task, examples=5, batch_size=2, generator=torch.Generator().manual_seed(0))
        >>> epoch = order.epoch().tolist()
        >>> len(epoch), len(order.left), sorted(epoch + order.left.tolist())  # of each five one is left over, and left out
        (4, 1, [0, 1, 2, 3, 4])
    """

    task: Task
    examples: int
    batch_size: int
    generator: torch.Generator
    left: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # of the current pass over the data

    def epoch(self) -> Tensor:
        """Those of the next epoch, to be split into batches."""
        if self.task.epoch_steps is None:
            return torch.randperm(self.examples, generator=self.generator)
        wanted = self.task.epoch_steps * self.batch_size
        if self.task.replacement:
            return torch.randint(self.examples, (wanted,), generator=self.generator)
        whole = self.examples - self.examples % self.batch_size
        parts: list[Tensor] = []
        while wanted > 0:
            usable = len(self.left) - len(self.left) % self.batch_size
            if not usable:
                self.left = torch.randperm(self.examples, generator=self.generator)
                usable = whole
            count = min(usable, wanted)
            parts.append(self.left[:count])
            self.left = self.left[count:]
            wanted -= count
        return torch.cat(parts)
