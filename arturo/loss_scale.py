r"""The unit of the loss, so that multiplying the loss by a constant does not change a run.

Three of the method's numbers are in units of the loss: :math:`a_0`, and the weights :math:`\rho` and :math:`\nu` beside
it in the objective. With ``initial_curvature=None`` the unit is taken from the first gradients, such that

.. math:: a_0 = 0.03 \, \frac{\text{root mean square of the first gradients}}{\text{step}}, \qquad
    \text{step} = \sqrt{2 \varepsilon \Sigma_0 / n}

where the step is what the bound allows per weight at lr = 1, and the mean is over all entries that are not 0, of all parameters
that take part in the first step. State keeps :math:`a_0 = 0.1`, and gradients are divided by the unit :math:`\kappa`: in units
of the loss the run has :math:`a_0 = 0.1 \kappa`, :math:`\rho\kappa`, :math:`\nu\kappa`. Nothing else has a unit that matters:
the filter's gains depend on ratios of q, r and P_0 alone, the bound is in nats, and eta follows.

A gradient of 0 carries no information about the loss's scale, so unused rows, dead units and parameters without a gradient do
not count. While every gradient is 0 or missing the unit is undecided (and has no effect). Once decided it stays. The state of
every parameter holds it (``scale``, 0 while undecided), so that a resumed run and parameters that join later have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from arturo.core.bounds import KL_PER_WEIGHT
from arturo.core.trust_region import Scalar
from arturo.hyperparameters import DEFAULT_CURVATURE
from arturo.kernels.batch import Row, largest_gradient, sum_dtype
from arturo.state import initial_precision

BEND = 0.03  # a_0 * step / gradient: what 0.1 was on the problems where it was chosen (experiments/first_gradients.py)
LEAST, MOST = 1e-30, 1e30  # of the unit: its inverse must be a float32
PIECES = {"cpu": 1 << 15}  # entries that are widened at a time; on accelerators, where launches are costly, PIECE:
PIECE = 1 << 22


def in_loss_units(a: Tensor, state: Mapping[str, Any]) -> Tensor:
    """A curvature or a gradient of the model, as stored, in units of the loss."""
    return a * state["scale"].to(a.dtype) if "scale" in state and state["scale"] > 0 else a


def gradient_sums(rows: Iterable[Row], device: torch.device) -> Tensor:
    """The sum of squares and the number of gradient entries that are neither 0 nor missing, over what this process counts."""
    sums = []
    for row in rows:
        if row.counted:
            parts = row.grad.detach().reshape(-1).split(PIECES.get(row.grad.device.type, PIECE))
            sums += [_sums_of(part).to(device) for part in parts if part.numel()]
    return torch.stack(sums).sum(0) if sums else torch.zeros(2, dtype=sum_dtype(device), device=device)


def _sums_of(g: Tensor) -> Tensor:
    dtype = sum_dtype(g.device)
    limit = largest_gradient(torch.float64 if g.dtype == torch.float64 else torch.float32)
    counts = (g.abs() <= limit) & (g != 0)  # False for NaN too
    return torch.stack([torch.where(counts, g, 0).to(dtype).square_().sum(), counts.sum(dtype=dtype)])


def typical_step(groups: Iterable[Mapping[str, Any]], n: Scalar) -> Scalar:
    """What the bound allows per weight at lr = 1 in the first step, sqrt(2 kl_bound variance / n), the largest over the groups.

    Example:
        >>> one = {"kl_bound": None, "initial_variance": 1.0, "prior_weight": 0.1}
        >>> round(typical_step([one], 1000), 6), round(typical_step([{**one, "kl_bound": 0.02}], 400), 6)
        (0.000447, 0.01)
    """
    per_weight, whole = 0.0, 0.0
    for group in groups:
        variance = 1 / initial_precision(group)
        if group["kl_bound"] is None:
            per_weight = max(per_weight, 2 * KL_PER_WEIGHT * variance)
        else:
            whole = max(whole, 2 * float(group["kl_bound"]) * variance)
    if isinstance(n, Tensor):
        return (whole / n.to(sum_dtype(n.device)).clamp(min=1)).clamp(min=per_weight).sqrt()
    return math.sqrt(max(whole / max(n, 1), per_weight))


def unit(squares: Tensor, count: Tensor, step: Scalar) -> Tensor:
    """The unit from :func:`gradient_sums` over all processes and :func:`typical_step`; 0 where nothing was seen.

    Example:
        >>> unit(torch.tensor(2 * 3.0**2), torch.tensor(2.0), 4.5), unit(torch.tensor(0.0), torch.tensor(0.0), 4.5)
        (tensor(0.2000), tensor(0.))
    """
    kappa = BEND / DEFAULT_CURVATURE * torch.sqrt(squares / count.clamp(min=1)) / step
    rounded = kappa.clamp(LEAST, MOST).to(torch.float32).to(kappa.dtype)  # shards add up in another order: the same bits
    return torch.where(count > 0, rounded, 0.0)
