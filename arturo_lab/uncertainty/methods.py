"""The methods. Another one is one more entry of ``METHODS``: what trains it, and how it predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from torch import Tensor, nn

from arturo import Arturo, Posterior, calibrate, predict
from arturo_lab.registry import Registry
from arturo_lab.uncertainty.images import BATCH, Images, Predictor, Trained, Work

TINY = 1e-12  # of a probability, before its logarithm
SCALING_RANGE = (0.05, 20.0)  # of temperature scaling
Made = tuple[Predictor, dict[str, Any]]  # how it predicts, and what was chosen on held-out images


@dataclass(frozen=True)
class Method:
    """One way to get probabilities.

    Args:
        label: its name in tables and figures.
        about: what it is, in a few words.
        optimizer: what trains its networks; "ours" and "theirs" stand for the user's choices.
        make: gets the networks and the images.
        networks: how many are trained.
        draws: whether a prediction takes ``Work.samples`` passes, and not one per network.
        tuned: whether held-out images choose its width.
    """

    label: str
    about: str
    optimizer: str
    make: Callable[[list[Trained], Images, Work], Made]
    networks: int = 1
    draws: bool = False
    tuned: bool = False

    def passes(self, samples: int) -> int:
        """Forward passes of one prediction."""
        return samples if self.draws else self.networks


def point(trained: list[Trained], split: Images, work: Work) -> Made:
    return trained[0].probabilities, {}


def ensemble(trained: list[Trained], split: Images, work: Work) -> Made:
    return lambda images: torch.stack([one.probabilities(images) for one in trained]).mean(0), {}


def temperature(trained: list[Trained], split: Images, work: Work) -> Made:
    """One number divides the logits, by the likelihood of held-out images (Guo et al. 2017). Classes keep their order."""
    one = trained[0]
    fitted, at_edge = fit_temperature(one.probabilities(split.held_out_images), split.held_out_labels)
    ends = {"at_edge": at_edge, "edges": ["temperature"] if at_edge else []}
    return lambda images: scaled(one.probabilities(images), fitted), {"temperature": fitted, **ends}


def fit_temperature(probabilities: Tensor, labels: Tensor) -> tuple[float, bool]:
    """The temperature with the least negative log-likelihood, and whether it lies at an end of its range.

    Example:
        >>> sure = torch.tensor([[0.99, 0.01]] * 10, dtype=torch.float64)  # right nine times of ten
        >>> fitted, at_edge = fit_temperature(sure, torch.tensor([0] * 9 + [1]))
        >>> scaled(sure, fitted)[0].round(decimals=3).tolist(), at_edge
        ([0.9, 0.1], False)
    """
    rows = torch.arange(len(labels))

    def nll(log_temperature: float) -> float:
        right = scaled(probabilities, math.exp(log_temperature))[rows, labels]
        return float(-right.clamp_min(TINY).log().mean())

    low, high = (math.log(end) for end in SCALING_RANGE)
    best = float(minimize_scalar(nll, bounds=(low, high), method="bounded", options={"xatol": 1e-6}).x)
    return math.exp(best), min(best - low, high - best) < 1e-3


def scaled(probabilities: Tensor, temperature: float) -> Tensor:
    """Those of logits divided by ``temperature``."""
    return (probabilities.clamp_min(TINY).log() / temperature).softmax(1)


def dropout(trained: list[Trained], split: Images, work: Work) -> Made:
    """Dropout stays on: every pass is another thinned network."""
    layers = dropout_layers(trained[0].model)

    def predictor(images: Tensor) -> Tensor:
        with seeded(work.seed), switched_on(layers):
            return torch.stack([trained[0].probabilities(images) for _ in range(work.samples)]).mean(0)

    return predictor, {}


def arturo(curvature: str, linearized: bool = False) -> Callable[[list[Trained], Images, Work], Made]:
    """The optimizer's posterior at ess = the number of training images."""

    def make(trained: list[Trained], split: Images, work: Work) -> Made:
        one = trained[0]
        assert isinstance(one.optimizer, Arturo)
        posterior = one.optimizer.posterior(
            ess=len(split.train_labels), curvature=curvature, model=one.model, data=curvature_data(one, split, work)
        )
        return tuned(one, posterior, split, work, linearized)

    return make


def laplace(trained: list[Trained], split: Images, work: Work) -> Made:
    one = trained[0]
    data, ess = curvature_data(one, split, work), len(split.train_labels)
    return tuned(one, Posterior.of_model(one.model, ess=ess, prior_precision=1.0, data=data), split, work)


def ivon(trained: list[Trained], split: Images, work: Work) -> Made:
    """IVON's own Gaussian as it was trained: precision ess (hess + weight_decay)."""
    one = trained[0]
    (group,) = one.optimizer.param_groups
    sizes = [p.numel() for p in group["params"]]
    named = zip(one.model.named_parameters(), group["hess"].split(sizes), strict=True)
    curvature = {name: part.view_as(p) for (name, p), part in named}
    prior = group["ess"] * group["weight_decay"]
    posterior = Posterior.of_model(one.model, ess=group["ess"], prior_precision=prior, curvature=curvature)
    return drawing(one, posterior, work), {}


def tuned(one: Trained, posterior: Posterior, split: Images, work: Work, linearized: bool = False) -> Made:
    """Temperature and prior by the likelihood of held-out images."""
    calibration = calibrate(
        one.model,
        posterior,
        one.inputs(split.held_out_images),
        split.held_out_labels.to(one.config.machine.device),
        temperatures=work.temperatures,
        prior_precisions=work.prior_precisions,
        samples=work.tuning_samples,
        seed=work.seed + 1,
        batch_size=BATCH,
        vectorized=False,
        linearized=linearized,
    )
    chosen = {
        "temperature": calibration.best.temperature,
        "prior_precision": calibration.best.prior_precision,
        "held_out_nll": calibration.best.nll,
        "at_edge": calibration.at_edge,
        "edges": edges(calibration.best.temperature, calibration.best.prior_precision, work),
    }
    return drawing(one, calibration.posterior, work, linearized), chosen


def edges(temperature: float, prior_precision: float | None, work: Work) -> list[str]:
    """Which of the two is the least or the largest that was tried, so that the best may lie beyond.

    Example:
        >>> edges(1.0, 100.0, Work(1, 1, 1, (0.01, 0.1, 1.0), (10.0, 100.0, 1000.0), seed=0))
        ['temperature']
    """
    tried = {"temperature": (temperature, work.temperatures), "prior": (prior_precision, work.prior_precisions)}
    return [name for name, (value, grid) in tried.items() if value in (min(grid), max(grid))]


def drawing(one: Trained, posterior: Posterior, work: Work, linearized: bool = False) -> Predictor:
    """The mean over draws: the same ones for every image."""

    def predictor(images: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(work.seed)
        options: dict[str, Any] = {"batch_size": BATCH, "vectorized": False, "linearized": linearized}
        prediction = predict(one.model, posterior, one.inputs(images), work.samples, generator=generator, **options)
        return prediction.mean.double().cpu()

    return predictor


def curvature_data(one: Trained, split: Images, work: Work) -> tuple[Tensor, Tensor]:
    few = slice(work.curvature_images)
    return one.inputs(split.train_images[few]), split.train_labels[few].to(one.config.machine.device)


def dropout_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's global generators at a seed; afterwards as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def switched_on(layers: list[Any]) -> Iterator[None]:
    """Training mode for these layers alone."""
    try:
        for layer in layers:
            layer.train()
        yield
    finally:
        for layer in layers:
            layer.eval()


METHODS: Registry[Method] = Registry(
    "methods",
    {
        "point": Method("point estimate", "one network, one pass", "theirs", point),
        "temperature": Method(
            "temperature scaling", "one network; held-out images scale its logits", "theirs", temperature, tuned=True
        ),
        "arturo-point": Method("arTuRO, mean only", "the mean of the posterior, one pass", "ours", point),
        "arturo-temperature": Method(
            "arTuRO, temperature scaling", "the mean; held-out images scale its logits", "ours", temperature, tuned=True
        ),
        "arturo": Method("arTuRO posterior", "draws; Gauss-Newton diagonal", "ours", arturo("ggn"), draws=True, tuned=True),
        "arturo-surrogate": Method(
            "arTuRO, filter's curvature",
            "draws; curvature from the filter",
            "ours",
            arturo("surrogate"),
            draws=True,
            tuned=True,
        ),
        "arturo-linearized": Method(
            "arTuRO, linearized", "draws of the linearized network", "ours", arturo("ggn", True), draws=True, tuned=True
        ),
        "ivon": Method("IVON", "draws from its own Gaussian; package ivon-opt", "ivon", ivon, draws=True),
        "laplace": Method(
            "diagonal Laplace", "Gauss-Newton diagonal after training", "theirs", laplace, draws=True, tuned=True
        ),
        "dropout": Method("MC dropout", "dropout left on", "theirs", dropout, draws=True),
        "ensemble": Method("deep ensemble of 5", "five networks, five passes", "theirs", ensemble, networks=5),
    },
)
DEFAULT = (
    "point",
    "temperature",
    "arturo-point",
    "arturo-temperature",
    "arturo",
    "arturo-surrogate",
    "ivon",
    "laplace",
    "dropout",
    "ensemble",
)
