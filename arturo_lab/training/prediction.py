"""How far the surrogate's predicted gradient is from the one then seen."""

from __future__ import annotations

import torch

from arturo import Arturo
from arturo.loss_scale import in_loss_units


@torch.no_grad()
def prediction_error(optimizer: Arturo) -> float | None:
    r""":math:`\|g - (a\mu + b)\| / \|g\|` over all weights, with the model as the last step left it and the new gradient.

    To be called between ``backward()`` and ``step()``. 1 is what predicting nothing would give; two independent gradients of
    equal size are the square root of 2 apart. None before the first step, and where the gradient is zero or not finite.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = Arturo([p], kl_bound=0.01, initial_curvature=0.1)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     (0.05 * p**2).sum().backward()  # its curvature is the one the model starts with
        ...     print(prediction_error(optimizer))
        ...     optimizer.step()
        None
        0.0
    """
    error, size = 0.0, 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            state = optimizer.state.get(p, {})
            if state.get("step", 0) == 0:
                return None
            mean = state.get("mean", p)
            grad, mean = (torch.view_as_real(x) if x.is_complex() else x for x in (p.grad, mean))
            g = grad.to(mean.dtype) * (-1 if group["maximize"] else 1)
            predicted = in_loss_units(state["a"].to(mean.dtype) * mean + state["b"].to(mean.dtype), state)
            error += (g - predicted).double().square().sum().item()
            size += g.double().square().sum().item()
    return (error / size) ** 0.5 if 0 < size < float("inf") else None
