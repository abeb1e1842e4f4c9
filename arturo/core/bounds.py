"""How far a step may go, and how much of the weights decays before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from arturo.core.trust_region import Scalar

DECAY_PER_LR = 1e-3  # kl_bound=None: at lr = 1 weight_decay means what it means to AdamW at its default lr
KL_PER_WEIGHT = 1e-7  # nats; kl_bound=None is this times the number of weights that take part (docs/tuning.md)


def bounds(groups: Sequence[Mapping[str, Any]], lrs: Sequence[Scalar], sizes: Sequence[Scalar]) -> tuple[list[Scalar], Scalar]:
    """e = kl_bound * lr^2 of each group, in nats; and the number of weights that take part: those of groups whose lr is not 0.

    Step length is proportional to lr, as for SGD. ``sizes`` are real numbers with a gradient, group by group.

    Example:
        >>> bounds([{"kl_bound": None}, {"kl_bound": 0.5}], [2.0, 0.5], [10**7, 0])
        ([4.0, 0.125], 10000000)
    """
    n = sum([size * (lr > 0) for size, lr in zip(sizes, lrs, strict=True)])
    kl_bounds = [group["kl_bound"] for group in groups]
    return [(KL_PER_WEIGHT * n if kl is None else kl) * lr * lr for kl, lr in zip(kl_bounds, lrs, strict=True)], n


def decayed_part(group: Mapping[str, Any], lr: Scalar) -> Scalar:
    """What weight decay takes of the mean in one step.

    With a ``kl_bound`` the paper's: its tabulated values keep their meaning. Without one, no matter how many weights there are:
    the default bound grows with them, and with it would the decay.
    """
    kl_bound, wd = group["kl_bound"], float(group["weight_decay"])
    return wd * (DECAY_PER_LR * lr if kl_bound is None else kl_bound * lr * lr)


def decay(group: Mapping[str, Any], lr: Scalar) -> Scalar:
    """The factor on the mean; more than all of it cannot decay."""
    if not group["weight_decay"]:
        return 1.0
    part = decayed_part(group, lr)
    return (1 - part).clamp(min=0) if isinstance(part, Tensor) else max(1 - part, 0.0)
