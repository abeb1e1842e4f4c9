r"""What a model predicts when its weights are uncertain: the mean over draws, and where the uncertainty comes from.

Over draws :math:`\theta_s` from the posterior, with :math:`p_s = p(y \mid x, \theta_s)` and the entropy :math:`H`:

.. math::
    \underbrace{H[\tfrac1S \sum_s p_s]}_{\text{total}} = \underbrace{\tfrac1S \sum_s H[p_s]}_{\text{aleatoric}}
    + \underbrace{\text{the rest}}_{\text{epistemic}},

the rest being the mutual information of label and weights. For regression the law of total variance splits likewise:
noise variance plus variance of the outputs over draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from arturo.declaration import check_number
from arturo.posterior.curvature import evaluating
from arturo.posterior.gaussian import Posterior
from arturo.posterior.sampling import as_param, refreshed_norms, refuse_inference_mode, replaced
from arturo.sharding import is_sharded

MEMORY = 256 << 20  # bytes of draws alive at a time
LIKELIHOODS = ("categorical", "bernoulli", "gaussian")
Inputs = Tensor | tuple[Tensor, ...]


class HasPosterior(Protocol):
    """An optimizer of ours."""

    def posterior(self, *, ess: float, **options: Any) -> Posterior: ...


@dataclass(frozen=True)
class Prediction:
    """What :func:`predict` gives.

    Attributes:
        mean: probabilities of the classes, or of 1; for ``"gaussian"`` the mean.
        variance: of the probabilities over the draws; for ``"gaussian"`` the whole variance, aleatoric + epistemic.
        aleatoric: what would be left if the weights were known. Nats, one number per row of classes or per Bernoulli variable;
            for ``"gaussian"`` the noise variance.
        epistemic: what knowing the weights would remove. Nats; for ``"gaussian"`` the variance of the outputs over draws.
        likelihood: which of the three this is.
    """

    mean: Tensor
    variance: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    likelihood: str

    def nll(self, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each target, nats; for ``"gaussian"`` that of a Gaussian with this mean and variance.

        Example:
            >>> half = torch.tensor([[0.5, 0.5]])
            >>> Prediction(half, half, half, half, "categorical").nll(torch.tensor([1]))
            tensor([0.6931])
        """
        tiny = torch.finfo(self.mean.dtype).tiny
        if self.likelihood == "categorical":
            return -self.mean.gather(-1, targets.unsqueeze(-1)).squeeze(-1).clamp(min=tiny).log()
        if self.likelihood == "bernoulli":
            return -torch.where(targets > 0.5, self.mean, 1 - self.mean).clamp(min=tiny).log()
        variance = self.variance.clamp(min=tiny)
        return 0.5 * ((targets - self.mean).square() / variance + (2 * torch.pi * variance).log())


@torch.no_grad()
def predict(
    model: nn.Module,
    posterior: Posterior | HasPosterior,
    x: Inputs,
    samples: int = 32,
    *,
    likelihood: str = "categorical",
    noise_variance: float = 0.0,
    linearized: bool = False,
    refresh: Iterable[Tensor] | None = None,
    vectorized: bool | None = None,
    batch_size: int = 1000,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Prediction:
    r"""Predict with the mean over draws of the weights. The model is in evaluation mode meanwhile, then back in its own.

    Args:
        model: the network; gives logits, or values for ``"gaussian"``.
        posterior: a :class:`Posterior`; or the optimizer, and ``options`` are those of :meth:`arturo.Arturo.posterior`.
        x: all inputs, one tensor or a tuple of them. Every input sees the same draws.
        samples: number of draws.
        likelihood: ``"categorical"``, ``"bernoulli"`` or ``"gaussian"``: what the outputs are logits or means of.
        noise_variance: of an observation, for ``"gaussian"``.
        linearized: use :math:`f(\mu) + J(\theta - \mu)` instead of the network: the model that the Gauss-Newton curvature
            belongs to. Better for wide posteriors, whose draws are far from the trained weights.
        refresh: input batches from which batch norms recompute their statistics for each draw. None: frozen, as trained.
        vectorized: True for many draws at once by ``torch.func``, False for one after the other, None to try.
        batch_size: inputs that pass through the network at a time.
        generator: of the draws.

    Example:
        >>> import arturo
        >>> _ = torch.manual_seed(0)
        >>> model, x, y = nn.Linear(2, 3), torch.randn(90, 2), torch.arange(90) % 3
        >>> optimizer = arturo.Arturo(model.parameters())
        >>> nn.functional.cross_entropy(model(x), y).backward()
        >>> optimizer.step()
        >>> prediction = predict(model, optimizer, x, ess=90, data=(x, y))
        >>> prediction.mean.shape, bool((prediction.epistemic >= 0).all())
        (torch.Size([90, 3]), True)

    References:
        Depeweg et al.: Decomposition of Uncertainty in Bayesian Deep Learning, ICML 2018 (the split).
        Immer, Korzepa, Bauer: Improving Predictions of Bayesian Neural Nets via Local Linearization, AISTATS 2021.
    """
    refuse_inference_mode("predict()")
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"Invalid likelihood value: {likelihood!r} (must be one of {', '.join(map(repr, LIKELIHOODS))})")
    for name, value in (("samples", samples), ("batch_size", batch_size)):
        if type(value) is not int or value < 1:
            raise ValueError(f"Invalid {name} value: {value!r} (must be an integer >= 1)")
    check_number("noise_variance", noise_variance, "of an observation", zero=True)
    if refresh is not None and (linearized or vectorized):
        raise ValueError("Invalid refresh value: batch norms are refreshed draw by draw, neither vectorized nor linearized")
    posterior = as_posterior(posterior, model, options)
    inputs = x if isinstance(x, tuple) else (x,)
    pieces = list(zip(*(t.split(batch_size) for t in inputs), strict=True))
    moments = _Moments(likelihood)
    norms = None if refresh is None else list(refresh)
    vectorized = False if refresh is not None else vectorized
    with evaluating(model):
        for outputs in _outputs(model, posterior, pieces, samples, generator, linearized, vectorized, norms):
            moments.add(outputs)
    return moments.prediction(noise_variance)


def as_posterior(source: Any, model: nn.Module, options: dict[str, Any]) -> Posterior:
    """The posterior itself, or that of the optimizer with these options."""
    if not isinstance(source, Posterior):
        return source.posterior(model=model, **options)  # type: ignore[no-any-return]
    if options:
        raise TypeError(f"unexpected argument {next(iter(options))!r}: a Posterior has its own; see Posterior.replace()")
    return source


def _outputs(
    model: nn.Module,
    posterior: Posterior,
    pieces: list[tuple[Tensor, ...]],
    samples: int,
    generator: torch.Generator | None,
    linearized: bool,
    vectorized: bool | None,
    refresh: list[Tensor] | None,
) -> Iterator[Tensor]:
    """The outputs, draw by input; several draws at a time where the model can be mapped over, else in the model itself."""
    params = posterior.parameters(model)
    if any(is_sharded(p) for p in params.values()):
        vectorized = False
    means = zip(params.items(), posterior.mean.values(), strict=True)
    mean = {name: as_param(mean, p.dtype) for (name, p), mean in means}
    size = sum(p.numel() * p.element_size() for p in mean.values())
    together = 1 if vectorized is False else max(1, min(samples, MEMORY // max(size, 1)))

    def network(values: dict[str, Tensor], piece: tuple[Tensor, ...]) -> Tensor:
        return functional_call(model, values, piece)  # type: ignore[no-any-return]

    def tangent(values: dict[str, Tensor], piece: tuple[Tensor, ...]) -> Tensor:
        change = {name: value - mean[name] for name, value in values.items()}
        value_and_tangent = jvp(lambda values: network(values, piece), (mean,), (change,))
        return value_and_tangent[0] + value_and_tangent[1]  # type: ignore[no-any-return]

    function = tangent if linearized else network
    for done in range(0, samples, together):
        number = min(together, samples - done)
        draws = [dict(zip(params, posterior.sample(generator).values(), strict=True)) for _ in range(number)]
        if vectorized is not False:
            stacked = {name: torch.stack([draw[name] for draw in draws]) for name in params}
            try:
                yield torch.cat([vmap(function, (0, None))(stacked, piece) for piece in pieces], dim=1)
                continue
            except (RuntimeError, ValueError):  # vmap does not take every model; what is wrong with the inputs shows below
                if vectorized:
                    raise
                vectorized = False
        for draw in draws:
            if linearized:
                yield torch.cat([tangent(draw, piece) for piece in pieces]).unsqueeze(0)
                continue
            with replaced(list(params.values()), draw.values()), refreshed_norms(model, refresh):
                outputs = torch.cat([model(*piece) for piece in pieces])
            yield outputs.unsqueeze(0)


class _Moments:
    """Running mean and variance over draws (by parts that are put together without cancelling), and the mean entropy."""

    def __init__(self, likelihood: str) -> None:
        self.likelihood = likelihood
        self.count = 0
        self.mean = self.squares = self.entropy = torch.zeros(())

    def add(self, outputs: Tensor) -> None:
        outputs = outputs.double()
        if self.likelihood == "categorical":
            outputs = outputs.softmax(-1)
        elif self.likelihood == "bernoulli":
            outputs = outputs.sigmoid()
        before, new = self.count, len(outputs)
        self.count = before + new
        mean = outputs.mean(0)
        change = mean - self.mean
        self.squares = self.squares + (outputs - mean).square().sum(0) + change.square() * (before * new / self.count)
        self.mean = self.mean + change * (new / self.count)
        self.entropy = self.entropy + (self._entropy(outputs).mean(0) - self.entropy) * (new / self.count)

    def _entropy(self, p: Tensor) -> Tensor:
        if self.likelihood == "categorical":
            return -p.xlogy(p).sum(-1)
        if self.likelihood == "bernoulli":
            return -p.xlogy(p) - (1 - p).xlogy(1 - p)
        return torch.zeros_like(p)

    def prediction(self, noise_variance: float) -> Prediction:
        variance = self.squares / max(self.count - 1, 1)
        if self.likelihood == "gaussian":
            noise = torch.full_like(variance, noise_variance)
            parts = [self.mean, variance + noise, noise, variance]
        else:
            rest = (self._entropy(self.mean) - self.entropy).clamp(min=0)  # never negative but for rounding
            parts = [self.mean, variance, self.entropy, rest]
        mean, variance, aleatoric, epistemic = (t.float() for t in parts)
        return Prediction(mean, variance, aleatoric, epistemic, self.likelihood)
