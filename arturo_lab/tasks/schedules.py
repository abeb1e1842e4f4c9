"""How lr changes over a training: a factor on every group's, from the share of the training that is done."""

from __future__ import annotations

import math
from collections.abc import Callable

from arturo_lab.registry import Registry

# (share of the training done, in [0, 1); the optimizer's factor at a milestone) -> factor on every group's lr. A share and
# not an epoch, so that a shortened run goes through the whole schedule.
Schedule = Callable[[float, float], float]

MILESTONES = (0.5, 0.75)  # the paper's: epochs 60 and 90 of 120, 80 and 120 of 160


def milestones(progress: float, factor: float) -> float:
    """The paper's schedule: lr times ``factor`` at half of the training, and again at three quarters.

    Example:
        >>> [milestones(epoch / 160, 0.1) for epoch in (0, 79, 80, 119)]
        [1.0, 1.0, 0.1, 0.1]
        >>> round(milestones(120 / 160, 0.1), 9)
        0.01
    """
    return float(factor ** sum(progress >= milestone for milestone in MILESTONES))


def cosine(progress: float, factor: float = 0.0) -> float:
    """From 1 to 0 along half a cosine. No milestones to tune, and the same curve suits every optimizer.

    Example:
        >>> [round(cosine(p), 3) for p in (0, 0.25, 0.5, 0.75, 1)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    return 0.5 * (1 + math.cos(math.pi * progress))


def constant(progress: float, factor: float = 0.0) -> float:
    """No schedule, for optimizers that want none."""
    return 1.0


SCHEDULES: Registry[Schedule] = Registry("schedule", {"constant": constant, "cosine": cosine, "milestones": milestones})


def lr_factor(schedule: Schedule, factor: float, warmup: float, steps: int) -> Callable[[int], float]:
    """Step -> factor on lr: the schedule over ``steps``, times a linear rise over the share ``warmup`` of them.

    Example:
        >>> rising = lr_factor(constant, 0.1, warmup=0.03, steps=100)
        >>> [rising(step) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    rising = int(warmup * steps)
    return lambda step: schedule(step / steps, factor) * min(1.0, (step + 1) / (rising + 1))
