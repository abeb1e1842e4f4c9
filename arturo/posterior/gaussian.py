r"""The Gaussian over the weights, to inspect, sample and save: docs/posterior.md explains it.

With a curvature :math:`a` of the *mean* loss per weight, ``ess`` observations, a prior of precision :math:`\lambda` and a
temperature :math:`T` its precision is

.. math::
    \Sigma^{-1} = \frac{\mathrm{ess} \max(a, 0) + \lambda}{T} .

At ``ess = 1 / prior_weight`` and :math:`T = 1` this is where the optimizer's own :math:`\Sigma` settles, if it was given an
``initial_curvature``: ``prior_weight`` is in units of the loss then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, nn

from arturo.declaration import check_number
from arturo.posterior.curvature import Data, Loss, ggn_diagonal
from arturo.posterior.sampling import (
    as_param,
    as_real,
    mean_of,
    refuse_inference_mode,
    replaced,
    sharded_like,
    standard_normal,
)
from arturo.sharding import drop_gathered, is_sharded, to_local
from arturo.state import HALF

FORMAT = "arturo.Posterior 1"


def precision(a: Tensor, ess: float, prior_precision: float, temperature: float) -> Tensor:
    r""":math:`(\mathrm{ess} \max(a, 0) + \lambda) / T`."""
    return (ess * a.clamp(min=0) + prior_precision) / temperature


class Weight(NamedTuple):
    """What the posterior knows of one parameter. Complex numbers are pairs of reals, tensors float32 or wider."""

    mean: Tensor
    curvature: Tensor  # of the mean loss
    prior_precision: float
    dtype: torch.dtype  # the parameter's
    param: Tensor | None  # the parameter itself, unless this was loaded from a file


class Posterior:
    r"""A diagonal Gaussian over the weights: :meth:`arturo.Arturo.posterior` makes one, :meth:`load` reads one.

    It is a snapshot: further training does not change it. Parameters that never took part in a step have no uncertainty and are
    not in it.

    Example:
        >>> import arturo
        >>> p = nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> optimizer = arturo.Arturo([p])
        >>> p.grad = torch.zeros(2)
        >>> optimizer.step()
        >>> posterior = optimizer.posterior(ess=100, curvature=lambda params: [torch.tensor([1.0, 3.0])], prior_precision=0)
        >>> posterior.variance["0"]
        tensor([0.0100, 0.0033])
        >>> posterior.replace(temperature=0.5).variance["0"]
        tensor([0.0050, 0.0017])
        >>> with posterior.sampled_params(generator=torch.Generator().manual_seed(0)):
        ...     bool((p != posterior.mean["0"]).all())
        True
    """

    def __init__(self, weights: Mapping[str, Weight], ess: float, temperature: float = 1.0) -> None:
        check(ess, temperature, None)
        self.weights = dict(weights)
        self.ess = float(ess)
        self.temperature = float(temperature)
        for name, w in self.weights.items():
            a = to_local(w.curvature)
            least = self.ess * max(a.min().item(), 0.0) + w.prior_precision if a.numel() else 1.0
            if not least > 0:
                raise ValueError(
                    f"Invalid prior_precision value: {w.prior_precision!r}, and curvature 0 somewhere in {name!r}: the "
                    "variance there would be infinite (pass a prior_precision > 0)"
                )

    @classmethod
    def of_model(
        cls,
        model: nn.Module,
        *,
        ess: float,
        prior_precision: float,
        curvature: Mapping[str, Tensor] | None = None,
        data: Data | None = None,
        loss: Loss = "cross_entropy",
        temperature: float = 1.0,
    ) -> Posterior:
        """Around the weights of a model that anything has trained: the diagonal Laplace approximation.

        Args:
            model: its parameters are the mean.
            ess, prior_precision, temperature: as in :meth:`arturo.Arturo.posterior`.
            curvature: of the mean loss, by parameter name; parameters it leaves out stay fixed. None: the Gauss-Newton diagonal
                from ``data`` and ``loss``.
        """
        if curvature is None:
            if data is None:
                raise TypeError("of_model needs data for the Gauss-Newton diagonal, or a curvature")
            curvature = ggn_diagonal(model, data, loss)
        check(ess, temperature, prior_precision)
        chosen = {name: p for name, p in model.named_parameters() if name in curvature}
        return cls(
            {name: weight_of(name, p, {}, curvature[name], prior_precision) for name, p in chosen.items()}, ess, temperature
        )

    @property
    def mean(self) -> dict[str, Tensor]:
        """The mean of every parameter, in the precision the optimizer keeps it in."""
        return {name: w.mean for name, w in self.weights.items()}

    @property
    def precision(self) -> dict[str, Tensor]:
        """One over the variance."""
        return {name: precision(w.curvature, self.ess, w.prior_precision, self.temperature) for name, w in self.weights.items()}

    @property
    def variance(self) -> dict[str, Tensor]:
        """Of every weight, in squared weights; a complex parameter's has a last dimension of two."""
        return {name: value.reciprocal() for name, value in self.precision.items()}

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw, in the parameters' shapes and dtypes. The generator's device need not be the parameters'.

        The numbers come in the order of the parameters and of their entries: the same generator gives the same draw on every
        device and, for sharded parameters, on every rank.
        """
        refuse_inference_mode("sample()")
        draw = {}
        for name, w in self.weights.items():
            std = precision(w.curvature, self.ess, w.prior_precision, self.temperature).rsqrt_()
            draw[name] = as_param(std.mul_(standard_normal(w.mean, generator)).add_(w.mean), w.dtype)
        return draw

    @torch.no_grad()
    def log_prob(self, values: Mapping[str, Tensor]) -> float:
        r""":math:`\tfrac12 \sum [\log \tfrac{\Lambda}{2\pi} - \Lambda (\theta - \mu)^2]`, :math:`\Lambda` the precision; nats.

        Args:
            values: a tensor for each parameter, as :meth:`sample` gives them; others are ignored.
        """
        total = 0.0
        for name, w in self.weights.items():
            if name not in values:
                raise KeyError(f"log_prob: no value for {name!r}; the posterior is over {', '.join(self.weights)}")
            value = as_real(values[name].detach()).double()
            if value.shape != w.mean.shape:
                raise ValueError(f"log_prob: {name!r} has shape {tuple(w.mean.shape)}, got {tuple(value.shape)}")
            prec = precision(w.curvature.double(), self.ess, w.prior_precision, self.temperature)
            terms: Any = (torch.log(prec / (2 * math.pi)) - prec * (value - w.mean.double()).square()).sum()
            total += 0.5 * (terms.full_tensor() if is_sharded(terms) else terms).item()
        return total

    def replace(
        self, *, ess: float | None = None, temperature: float | None = None, prior_precision: float | None = None
    ) -> Posterior:
        """The same mean and curvature with another number of observations, temperature or prior; costs nothing."""
        weights = self.weights
        if prior_precision is not None:
            check(self.ess, self.temperature, prior_precision)
            weights = {name: w._replace(prior_precision=float(prior_precision)) for name, w in weights.items()}
        return Posterior(weights, self.ess if ess is None else ess, self.temperature if temperature is None else temperature)

    @contextmanager
    def sampled_params(self, model: nn.Module | None = None, *, generator: torch.Generator | None = None) -> Iterator[None]:
        """One draw in the parameters inside the block; afterwards they are what they were, bit for bit, whatever happened.

        Args:
            model: whose parameters; needed only for a posterior from a file.
            generator: of the draw.
        """
        params = self.parameters(model)
        with replaced(list(params.values()), self.sample(generator).values()):
            yield

    def parameters(self, model: nn.Module | None = None) -> dict[str, Tensor]:
        """The live parameters, under the model's names for them if a model is given, else under the posterior's own.

        Raises:
            ValueError: one of them is not the model's, or has another shape.
        """
        own = {name: w.param for name, w in self.weights.items()}
        if model is None:
            if any(p is None for p in own.values()):
                raise ValueError("this posterior comes from a file: pass the model whose parameters are meant")
            return own  # type: ignore[return-value]
        drop_gathered(self.mean.values())
        named = dict(model.named_parameters())
        by_id = {id(p): name for name, p in named.items()}
        matched: dict[str, Tensor] = {}
        for name, w in self.weights.items():
            theirs = name if w.param is None else by_id.get(id(w.param))
            if theirs is None or theirs not in named:
                raise ValueError(
                    f"parameter {name!r} of the posterior, shape {tuple(w.mean.shape)}, is not one of the model's: is this the "
                    f"model the optimizer trained? It has {some(named)}"
                )
            p = named[theirs]
            if as_real(p).shape != w.mean.shape:
                raise ValueError(f"parameter {theirs!r}: shape {tuple(p.shape)}, in the posterior {tuple(w.mean.shape)}")
            matched[theirs] = p
        return matched

    def save(self, file: str | PathLike[str] | IO[bytes]) -> None:
        """Write everything but the parameters themselves. Give :meth:`arturo.Arturo.posterior` the model for good names."""
        weights = {name: (w.mean, w.curvature, w.prior_precision, w.dtype) for name, w in self.weights.items()}
        content = {"format": FORMAT, "ess": self.ess, "temperature": self.temperature, "weights": weights}
        torch.save(content, file)

    @classmethod
    def load(cls, file: str | PathLike[str] | IO[bytes], map_location: Any = None) -> Posterior:
        """Read what :meth:`save` wrote; ``map_location`` as in ``torch.load``."""
        content = torch.load(file, map_location=map_location, weights_only=True)
        form = content.get("format") if isinstance(content, dict) else None
        if form != FORMAT:
            raise ValueError(f"this file is not what Posterior.save() writes: its format is {form!r}, not {FORMAT!r}")
        weights = {name: Weight(mean, a, prior, dtype, None) for name, (mean, a, prior, dtype) in content["weights"].items()}
        return cls(weights, content["ess"], content["temperature"])

    def __repr__(self) -> str:
        size = sum(w.mean.numel() for w in self.weights.values())
        return f"Posterior({size} weights, ess={self.ess:g}, temperature={self.temperature:g})"


def weight_of(name: str, p: Tensor, state: Mapping[str, Tensor], a: Tensor, prior_precision: float) -> Weight:
    """A snapshot of one parameter, its curvature checked."""
    mean = mean_of(p, state)
    mean = mean.float() if mean.dtype in HALF else mean
    if a.shape != mean.shape:
        raise ValueError(f"curvature of {name!r} has shape {tuple(a.shape)}, the parameter {tuple(mean.shape)}")
    a = sharded_like(a.detach().to(device=mean.device, dtype=mean.dtype, copy=True), mean)
    if not bool(to_local(a).isfinite().all()):
        raise ValueError(f"curvature of {name!r} is not finite")
    return Weight(mean, a, float(prior_precision), p.dtype, p)


def check(ess: float, temperature: float, prior_precision: float | None) -> None:
    """Raise ValueError for a number out of its range."""
    check_number("ess", ess, "the number of observations the loss is a mean over, e.g. the size of the training set")
    check_number("temperature", temperature, "1 is the posterior itself, less is narrower")
    if prior_precision is not None:
        check_number("prior_precision", prior_precision, "of the prior N(0, 1 / prior_precision) of every weight", zero=True)


def some(names: Mapping[str, Any]) -> str:
    """The first few, for a message."""
    first = ", ".join(list(names)[:4])
    return f"{first}, ..." if len(names) > 4 else first or "nothing"
