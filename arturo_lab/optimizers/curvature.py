"""Exact diagonals of the Hessian in the training loop: BackPACK (extra ``[hessian]``), for the optimizers that want them."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from arturo.surrogates.diagonals import ATTRIBUTES, left_by_backpack
from arturo_lab.errors import ConfigError


def extend(network: nn.Module, loss: Any) -> None:
    """Let BackPACK follow a network and its loss. Their numbers and state dicts stay what they are."""
    if not isinstance(loss, nn.Module):
        raise no_rule(f"the loss {getattr(loss, '__name__', loss)}")
    for module in (network, loss):
        for part in module.modules():
            if isinstance(part, _BatchNorm) or getattr(part, "inplace", False):  # its hooks fail on what is overwritten
                raise no_rule(f"{type(part).__name__}, {'BatchNorm' if isinstance(part, _BatchNorm) else 'in place'}")
        _backpack().extend(module)


def no_rule(why: object) -> ConfigError:
    """BackPACK cannot follow this network."""
    return ConfigError(
        f"optimizer: it needs BackPACK's exact diagonal, which has no rule for a layer of this network ({why}). "
        "BatchNorm and residual sums are such layers. Use arturo-hutchinson or adahessian, which estimate it"
    )


@contextmanager
def diagonal_in_backward(name: str) -> Iterator[None]:
    """Inside, ``backward`` leaves the diagonal that ``surrogate=name`` reads at every parameter.

    A layer for which BackPACK has no rule (BatchNorm, a residual sum) is a ConfigError that says what to use instead.
    """
    extension = getattr(_backpack().extensions, ATTRIBUTES[name][1])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")  # images need no gradient
        try:
            with _backpack().backpack(extension()):
                yield
        except NotImplementedError as error:
            raise no_rule(error) from error


def _backpack() -> Any:
    try:
        importlib.import_module("backpack.extensions")
        return importlib.import_module("backpack")
    except ImportError as error:
        raise ConfigError(
            f"optimizer: exact Hessian diagonals come from BackPACK: pip install 'arturo[hessian]' ({error})"
        ) from error


def with_spatial_average(load: Callable[[], Callable[..., Optimizer]]) -> Callable[[], Callable[..., Optimizer]]:
    """pytorch-optimizer's AdaHessian with what its authors do for convolutions and the package leaves out: the mean of the
    estimate's absolute values over a kernel's two spatial axes stands for each of its entries.
    """
    return lambda: _spatial(load())


def with_exact_diagonal(load: Callable[[], Callable[..., Optimizer]]) -> Callable[[], Callable[..., Optimizer]]:
    """pytorch-optimizer's AdaHessian, fed with BackPACK's diagonal in the place of Hutchinson's estimate."""
    return lambda: _exact(load())


@functools.cache
def _spatial(base: Any) -> Callable[..., Optimizer]:
    class SpatialAdaHessian(base):  # type: ignore[misc]
        def compute_hutchinson_hessian(self, param_groups: Any, state: Any, **options: Any) -> None:
            super().compute_hutchinson_hessian(param_groups=param_groups, state=state, **options)
            for p in (p for group in param_groups for p in group["params"] if p.dim() == 4 and "hessian" in state[p]):
                h = state[p]["hessian"]
                h.copy_(h.abs().mean(dim=(2, 3), keepdim=True).expand_as(h))

    return SpatialAdaHessian


@functools.cache
def _exact(base: Any) -> Callable[..., Optimizer]:
    class ExactAdaHessian(base):  # type: ignore[misc]
        """The rest of the algorithm is untouched, as in the paper's ablation."""

        def step(self, closure: Any = None) -> Any:
            params = [p for group in self.param_groups for p in group["params"]]
            return super().step(closure, hessian=[h.detach() for h in left_by_backpack(params, "hessian")])

    return ExactAdaHessian
