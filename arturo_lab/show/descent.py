"""One optimizer on a two-dimensional landscape, every step recorded; arTuRO's steps with their trust regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from arturo import Arturo
from arturo.core import trust_region
from arturo.hyperparameters import SMALLEST_FLOOR
from arturo_lab.registry import ConfigError, Registry
from arturo_lab.show.landscapes import Landscape
from arturo_lab.tasks.schedules import cosine

Array = npt.NDArray[np.float64]
STEPS = 300
SHIFT = 0.1  # standard deviation of the start over the seeds: a setting must not owe its success to one lucky jump
LOST = 1e6  # a weight beyond this has diverged

# Nobody regularises: SGD and Adam without weight decay, arTuRO without its prior. What is not set here is the default.
BUILD: Registry[Callable[..., Optimizer]] = Registry(
    "optimizer",
    {
        "sgd": SGD,
        "adam": Adam,
        # SETTINGS were searched with an absolute curvature at the start.
        "arturo": lambda params, **settings: Arturo(params, prior_precision=0.0, initial_curvature=0.1, **settings),
    },
)

# The best of 24 settings each, by the mean log10 of the last loss over 8 seeds that are not shown; all under the same
# cosine schedule. experiments/landscapes.py searches, results/show/grid.json holds every trial.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "rosenbrock": {
        "sgd": {"lr": 0.0003, "momentum": 0.99},
        "adam": {"lr": 0.1, "betas": (0.9, 0.9)},
        "arturo": {"kl_bound": 1.0, "drift": 0.03},
    },
    "beale": {
        "sgd": {"lr": 0.003, "momentum": 0.9},
        "adam": {"lr": 0.1, "betas": (0.9, 0.9)},
        "arturo": {"kl_bound": 1.0, "drift": 1.0},
    },
    "noisy-quadratic": {
        "sgd": {"lr": 0.003, "momentum": 0.9},
        "adam": {"lr": 0.1, "betas": (0.9, 0.9)},
        "arturo": {"kl_bound": 1.0, "drift": 1.0},
    },
}


@dataclass(frozen=True)
class TrustRegion:
    """One step of arTuRO, as its state holds it: everything a picture of the step needs."""

    mean: Array  # where the step starts
    gradient: Array  # as observed there, noise included
    prec: Array  # diagonal of the inverse covariance before the step
    num: Array  # the model's gradient at the mean
    A: Array  # the model's curvature
    taken: Array  # where the step ends
    eta: float
    kl: float
    bound: float

    @property
    def convex(self) -> bool:
        """Whether the model has a minimum. A curvature at the floor means: none was measured along that weight."""
        return bool((self.A > SMALLEST_FLOOR).all())

    @property
    def optimum(self) -> Array:
        """Where the model alone would go: eta = 0."""
        return self.mean - self.num / self.A

    @property
    def radii(self) -> Array:
        """Half axes of the ellipse 1/2 sum prec (theta - mean)^2 = bound."""
        radii: Array = np.sqrt(2 * self.bound / self.prec)
        return radii

    @property
    def gradient_end(self) -> Array:
        """As far down the gradient as the region reaches."""
        length = float(np.sqrt(self.bound / (0.5 * np.sum(self.prec * self.gradient**2))))
        return self.mean - length * self.gradient

    @property
    def angle(self) -> float:
        """Between the step taken and the gradient step, in degrees."""
        u, v = self.taken - self.mean, self.gradient_end - self.mean
        return float(np.degrees(np.arccos(np.clip(u @ v / np.sqrt((u @ u) * (v @ v)), -1, 1))))


@dataclass(frozen=True)
class Descent:
    """The way of one optimizer. It is shorter than asked for if the optimizer diverged."""

    points: Array  # (steps + 1, 2); the first is the start
    losses: Array  # (steps + 1,), without noise
    regions: tuple[TrustRegion, ...]  # arTuRO only: one per step
    diverged: bool


def descend(landscape: Landscape, optimizer: str, settings: Mapping[str, Any], steps: int = STEPS, seed: int = 0) -> Descent:
    """Take ``steps`` steps. A seed shifts the start and draws the gradient noise, the same for every optimizer.

    Example:
        >>> from arturo_lab.show.landscapes import LANDSCAPES
        >>> way = descend(LANDSCAPES["beale"], "sgd", {"lr": 1e-3}, steps=5)
        >>> way.points.shape, bool(way.losses[-1] < way.losses[0]), way.diverged
        ((6, 2), True, False)
    """
    if steps < 1:
        raise ConfigError(f"steps: must be an integer >= 1, got {steps}")
    if seed < 0:
        raise ConfigError(f"seed: must be an integer >= 0, got {seed}")
    random = torch.Generator().manual_seed(seed)
    start = torch.tensor(landscape.start, dtype=torch.float64)
    theta = torch.nn.Parameter(start + SHIFT * torch.randn(2, generator=random, dtype=torch.float64))
    noise = landscape.noise * torch.randn(steps, 2, generator=random, dtype=torch.float64)
    chosen = BUILD[optimizer]([theta], **settings)
    scheduler = LambdaLR(chosen, lambda step: cosine(step / steps))

    points, regions, diverged = [theta.detach().clone()], [], False
    for t in range(steps):
        theta.grad = landscape.gradient(theta) + noise[t]
        if isinstance(chosen, Arturo):
            regions.append(watched_step(chosen, theta))
        else:
            chosen.step()
        scheduler.step()
        if not bool((theta.abs() < LOST).all()):  # True for NaN, too
            diverged = True
            break
        points.append(theta.detach().clone())
    losses = landscape.loss(torch.stack(points))
    return Descent(torch.stack(points).numpy(), losses.numpy(), tuple(regions[: len(points) - 1]), diverged)


def watched_step(optimizer: Arturo, theta: Tensor) -> TrustRegion:
    """One step of the real optimizer, and what its state says about it before and after."""
    state = optimizer.state[theta]
    if not state:
        create_state(optimizer)
    mean, prec = theta.detach().clone(), state["prec"].clone()
    optimizer.step()

    group, info = optimizer.param_groups[0], optimizer.last_step
    rho_lam = group["prior_weight"] * group["prior_precision"]
    floor = SMALLEST_FLOOR if group["curvature_floor"] == 0 and rho_lam == 0 else group["curvature_floor"]
    num = trust_region.model_gradient(state["a"], state["b"], mean, rho_lam)
    A = trust_region.curvature(state["a"], rho_lam, floor)
    assert theta.grad is not None
    arrays = {"mean": mean, "gradient": theta.grad, "prec": prec, "num": num, "A": A, "taken": theta.detach()}
    copies: dict[str, Array] = {name: tensor.clone().numpy() for name, tensor in arrays.items()}
    return TrustRegion(**copies, eta=info.eta, kl=info.kl, bound=info.bound)


def create_state(optimizer: Arturo) -> None:
    """A step with lr = 0 makes the state and does nothing else."""
    (group,) = optimizer.param_groups
    lr, group["lr"] = group["lr"], 0.0
    optimizer.step()
    group["lr"] = lr
