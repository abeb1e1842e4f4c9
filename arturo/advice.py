"""Warnings about settings with which nothing trains, or weights vanish: each is given once by an optimizer.

They read numbers of the host only: nothing is said of an lr in a tensor where the step may not read it (``capturable``,
accelerators), nor inside ``torch.compile``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from arturo.step import decayed_part

MOST_DECAY = 0.01  # of the mean in one step; AdamW's defaults take 1e-5
CALLER = 6  # two functions here, step, its no_grad, torch's profiling wrapper, the caller


class Advice:
    """What has been said, and what has been seen so far."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def before_step(self, groups: Sequence[Mapping[str, Any]], readable: bool) -> None:
        """Look at the options of a step to come; ``readable``: numbers in tensors may be read."""
        for group in groups:
            if group["weight_decay"] and "decay" not in self.said:
                self._decay(group, _number(group["lr"], readable))

    def _decay(self, group: Mapping[str, Any], lr: float | None) -> None:
        part = 0.0 if lr is None else decayed_part(group, lr)
        if part > MOST_DECAY:
            rule = "1e-3 * lr * weight_decay" if group["kl_bound"] is None else "kl_bound * lr**2 * weight_decay"
            self.said.add("decay")
            warnings.warn(
                f"weight_decay={group['weight_decay']:g} takes {min(part, 1.0):.2g} of every weight in each step ({rule}): "
                "after a hundred steps little is left of them. AdamW's default takes 1e-5. This warning is given once.",
                stacklevel=CALLER,
            )


def _number(lr: float | Tensor, readable: bool) -> float | None:
    if isinstance(lr, Tensor):
        return float(lr) if readable else None
    return lr
