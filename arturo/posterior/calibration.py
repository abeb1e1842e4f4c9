"""How wide the posterior should be: the temperature, and the prior, that predict held-out data best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from arturo.posterior.gaussian import Posterior
from arturo.posterior.prediction import Inputs, predict

TEMPERATURES = tuple(10.0 ** (k / 2) for k in range(-8, 3))  # 1e-4, 3e-4, ..., 10


@dataclass(frozen=True)
class Trial:
    """One candidate and the mean negative log-likelihood of the held-out data, nats. A prior of None is the posterior's own."""

    temperature: float
    prior_precision: float | None
    nll: float


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found.

    Attributes:
        posterior: the best one, ready for :func:`arturo.predict`.
        best: its trial.
        trials: all of them, in the order tried.
        at_edge: whether the best temperature or prior precision is the least or the largest tried: the optimum may lie beyond.
    """

    posterior: Posterior
    best: Trial
    trials: tuple[Trial, ...]
    at_edge: bool


def calibrate(
    model: nn.Module,
    posterior: Posterior,
    x: Inputs,
    y: Tensor,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    prior_precisions: Sequence[float] | None = None,
    samples: int = 16,
    seed: int = 0,
    **options: Any,
) -> Calibration:
    """Pick temperature, and prior precision, by the negative log-likelihood of held-out data.

    Held out means neither trained on nor the test set. Every candidate is tried with the same draws of noise.

    Args:
        model: the network.
        posterior: its mean and curvature; :meth:`arturo.Arturo.posterior` makes one.
        x: held-out inputs.
        y: their targets.
        temperatures: candidates.
        prior_precisions: candidates, each tried with each temperature; None keeps the posterior's own.
        samples: draws per candidate.
        seed: of the draws.
        options: further arguments of :func:`arturo.predict`, such as ``likelihood`` and ``linearized``.

    Example:
        >>> import arturo
        >>> _ = torch.manual_seed(0)
        >>> model, x = nn.Linear(2, 1), torch.randn(200, 2)
        >>> y = (torch.rand(200, 1) < model(x).sigmoid()).float()
        >>> optimizer = arturo.Arturo(model.parameters())
        >>> nn.functional.binary_cross_entropy_with_logits(model(x[:100]), y[:100]).backward()
        >>> optimizer.step()
        >>> posterior = optimizer.posterior(ess=100, model=model, data=(x[:100], y[:100]), loss="binary_cross_entropy")
        >>> result = calibrate(model, posterior, x[100:], y[100:], temperatures=[0.01, 1, 1e6], likelihood="bernoulli")
        >>> result.best.temperature < 1e6, len(result.trials), result.posterior.temperature == result.best.temperature
        (True, 3, True)
    """
    if not temperatures or (prior_precisions is not None and not prior_precisions):
        raise ValueError("calibrate needs at least one temperature, and at least one prior precision unless that is None")
    trials, candidates = [], []
    for prior, temperature in itertools.product([None] if prior_precisions is None else prior_precisions, temperatures):
        candidate = posterior.replace(temperature=temperature, prior_precision=prior)
        prediction = predict(model, candidate, x, samples, generator=torch.Generator().manual_seed(seed), **options)
        candidates.append(candidate)
        trials.append(Trial(float(temperature), prior, prediction.nll(y).mean().item()))
    i = min(range(len(trials)), key=lambda i: trials[i].nll if math.isfinite(trials[i].nll) else math.inf)
    grids = ((trials[i].temperature, temperatures), (trials[i].prior_precision, prior_precisions or ()))
    at_edge = any(len(grid) > 1 and best in (min(grid), max(grid)) for best, grid in grids)
    return Calibration(candidates[i], trials[i], tuple(trials), at_edge)
