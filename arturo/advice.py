"""Warnings about settings that do not train or that make weights vanish; an optimizer gives each of them once.

They read host numbers only: there is no warning about an lr in a tensor that the step must not read (``capturable``,
accelerators), nor inside ``torch.compile``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from arturo.core.bounds import decayed_part
from arturo.step_info import StepInfo

MOST_DECAY = 0.01  # of the mean in one step; AdamW's defaults take 1e-5
SMALL_LR = 0.05  # a step factor below this is meant for another optimizer: AdamW's are 1e-5 to 1e-2
IDLE = 100  # first steps none of which the bound held back
WARM_UP = 200  # steps in which lr may still rise


class Advice:
    """The warnings given so far, and what they are based on.

    Attributes:
        young: False in a resumed run, and after the first lr that is not too small: smaller ones then come from a schedule.
    """

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.young = True
        self.idle: int | None = 0  # steps that the bound did not hold back; None once it has
        self.steps = 0
        self.named = 0.0  # the largest lr that a group was made with: a smaller one at the first step is then a warm-up

    def resume(self) -> None:
        """A resumed run may be at the end of its schedule: no warnings about its start."""
        self.young, self.idle = False, None

    def note_lr(self, lr: float | Tensor) -> None:
        """A group was added, with this lr."""
        self.named = max(self.named, _number(lr, True) or 0.0)

    def before_step(self, groups: Sequence[Mapping[str, Any]], readable: bool) -> None:
        """Look at the options of a step to come; ``readable``: numbers in tensors may be read."""
        lrs = [_number(group["lr"], readable) for group in groups]
        for group, lr in zip(groups, lrs, strict=True):
            if group["weight_decay"] and lr is not None and "decay" not in self.said:
                self._decay(group, lr)
        largest = max((lr for lr in lrs if lr is not None), default=0.0)
        if self.young and largest > 0 and None not in lrs and groups[0]["eta"] is None:
            self._small_lr(groups, largest)

    def after_step(self, groups: Sequence[Mapping[str, Any]], info: StepInfo) -> None:
        """Look at what a step did; not called where the step must not read it."""
        if self.idle is None or info.kl == 0 or groups[0]["eta"] is not None:
            return
        self.idle = None if info.active else self.idle + 1
        if self.idle == IDLE:
            self.idle = None
            warn(
                f"the trust region has not held back any of the first {IDLE} steps: each goes to the minimum of the model, "
                "however poor that model is. Is kl_bound too large, or are initial_curvature and prior_weight meant for a "
                "loss of another scale? initial_curvature=None finds that scale. This warning is given once."
            )

    def _small_lr(self, groups: Sequence[Mapping[str, Any]], largest: float) -> None:
        self.steps += 1
        if largest > SMALL_LR:
            self.young = False
            return
        peaks = [_number(group[key], True) for group in groups for key in ("initial_lr", "max_lr") if key in group]
        rising = max(self.named, *(peak or 0.0 for peak in peaks), 0.0) > SMALL_LR  # schedulers leave their peak in the group
        if self.steps == (WARM_UP if rising else 1):
            self.young = False
            warn(
                f"lr={largest:g} looks like a learning rate for AdamW. Arturo's lr is a step factor: 1.0 is the full step, and "
                f"at this one steps are {1 / largest:.3g} times shorter and hardly train. Leave lr out, or pass 1.0 where the "
                "framework asks for a learning rate. This warning is given once."
            )

    def _decay(self, group: Mapping[str, Any], lr: float) -> None:
        part = decayed_part(group, lr)
        if part > MOST_DECAY:
            rule = "1e-3 * lr * weight_decay" if group["kl_bound"] is None else "kl_bound * lr**2 * weight_decay"
            self.said.add("decay")
            warn(
                f"weight_decay={group['weight_decay']:g} takes {min(part, 1.0):.2g} of every weight in each step ({rule}): "
                "after a hundred steps little is left of them. AdamW's default takes 1e-5. This warning is given once."
            )


def warn(message: str) -> None:
    """Point at the user's line that called into this package, past the wrappers of torch and its schedulers."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_back.f_globals.get("__name__", "").split(".")[0] in ("arturo", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level + 1)


def _number(lr: float | Tensor, readable: bool) -> float | None:
    if isinstance(lr, Tensor):
        return float(lr) if readable and lr.device.type != "meta" else None
    return lr
