"""What a step reports: ``optimizer.last_step``."""

from __future__ import annotations

from typing import NamedTuple


class StepInfo(NamedTuple):
    r"""The trust region of one step.

    Attributes:
        eta: multiplier of the constraint; 0 when the surrogate's optimum lies inside the region.
        kl: :math:`C_\mu`, the mean's part of KL(new || old), in nats. It equals the bound when active; where a group has a
            smaller lr or kl_bound than another, it is less. The covariance's part is penalised, not bounded, and not included.
        bound: ``kl_bound * lr ** 2``, the largest over the groups, in nats. 0 when nothing took part in the step.
        evaluations: evaluations of the constraint; passes over memory = evaluations + 1.
        active: whether the bound held the step back.
        skipped: gradient entries that were not finite (or too large to square) and counted as missing observations.

    Example:
        >>> import arturo, torch
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = arturo.Arturo([p], kl_bound=0.1)
        >>> p.square().sum().backward()
        >>> optimizer.step()
        >>> info = optimizer.last_step
        >>> info.active, info.evaluations, round(info.kl / info.bound, 2)
        (True, 2, 1.0)
    """

    eta: float
    kl: float
    bound: float
    evaluations: int
    active: bool
    skipped: int
