"""Draws in place of the parameters: put in, always taken out again, never mistaken for the mean.

A parameter that holds a draw is a key of ``_PUT``, with the values it held before, oldest first. The first of them is the mean.
Blocks may nest, and may end in any order: the mean is restored when the last one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from arturo.core import rounding
from arturo.kernels.eager import follow_parameter
from arturo.sharding import drop_gathered, is_sharded, to_local

_PUT: dict[Tensor, list[tuple[object, Tensor]]] = {}  # parameter -> (whose draw replaced it, the value before), ...


@contextmanager
def replaced(params: Sequence[Tensor], values: Iterable[Tensor]) -> Iterator[None]:
    """Let ``params`` hold ``values`` inside the block; afterwards every bit is as before.

    Example:
        >>> p = nn.Parameter(torch.zeros(2))
        >>> with replaced([p], [torch.ones(2)]):
        ...     print(p.tolist())
        [1.0, 1.0]
        >>> p.tolist()
        [0.0, 0.0]
    """
    refuse_inference_mode("putting a draw into parameters")
    block = object()
    put: list[Tensor] = []
    try:
        with torch.no_grad():
            for p, value in zip(params, values, strict=True):
                _PUT.setdefault(p, []).append((block, p.detach().clone()))
                put.append(p)
                p.copy_(value)
        drop_gathered(put)
        yield
    finally:
        for p in put:
            _take_out(p, block)
        drop_gathered(put)


@torch.no_grad()
def _take_out(p: Tensor, block: object) -> None:
    stack = _PUT[p]
    i = next(i for i, (owner, _) in enumerate(stack) if owner is block)
    _, before = stack.pop(i)
    if i == len(stack):
        p.copy_(before)
    else:  # a later block is still open: it will restore what we would have
        stack[i] = (stack[i][0], before)
    if not stack:
        del _PUT[p]


def refuse_draws(params: Iterable[Tensor]) -> None:
    """Raise RuntimeError if any parameter holds a draw: a step from there would be lost, or be mistaken for the mean."""
    if _PUT and any(p in _PUT for p in params):
        raise RuntimeError(
            "step() inside sampled_params(): the parameters hold a draw, not the mean. Call backward() inside the block and "
            "step() after it, or Arturo(..., sample_gradients=True) and step(closure)"
        )


def refuse_inference_mode(what: str) -> None:
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{what} does not work inside torch.inference_mode(): tensors made there are frozen. Use torch.no_grad()"
        )


def mean_of(p: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """A copy of the mean, in the precision it is kept in and as reals; also while the parameter holds a draw."""
    value = _PUT[p][0][1] if p in _PUT else p.detach()
    if "mean" in state:
        mean = state["mean"].clone()
        follow_parameter(to_local(mean), to_local(as_real(value)), None)  # someone may have written into it since the last step
        return mean
    return as_real(value).clone()


def as_real(x: Tensor) -> Tensor:
    """Complex numbers as pairs of reals, as state has them."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def as_param(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of :func:`as_real`, in the parameter's dtype."""
    return torch.view_as_complex(x.contiguous()).to(dtype) if dtype.is_complex else x.to(dtype)


def standard_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Noise in the shape and precision of ``like``; the same whatever its strides are, and drawn where the generator is.

    Of a DTensor every process draws the whole and keeps its shard: replicas agree, and no number travels.
    """
    if is_sharded(like) and generator is None:
        raise RuntimeError(
            "a draw of sharded parameters (DTensor) needs a generator with the same seed on every rank: "
            "generator=torch.Generator().manual_seed(seed)"
        )
    device = like.device if generator is None else generator.device
    return sharded_like(torch.randn(like.shape, generator=generator, dtype=like.dtype, device=device).to(like.device), like)


def sharded_like(whole: Tensor, like: Any) -> Tensor:
    """A tensor that every process has whole, laid out like the DTensor ``like``; as it is if that is plain or it already is."""
    if not is_sharded(like) or is_sharded(whole):
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    alike = DTensor.from_local(whole, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return alike.redistribute(like.device_mesh, like.placements)


def draw(p: Tensor, state: Mapping[str, Tensor], generator: torch.Generator | None) -> Tensor:
    """From the optimizer's own Gaussian N(mean, 1 / prec), in the parameter's shape and dtype."""
    mean = mean_of(p, state)
    return as_param(standard_normal(mean, generator).mul_(state["prec"].to(mean.dtype).rsqrt()).add_(mean), p.dtype)


def step_generator(seed: int, step: int) -> torch.Generator:
    """The generator of one step of ``sample_gradients``: a resumed run draws what the uninterrupted one would have."""
    return torch.Generator().manual_seed(rounding.mix((rounding.mix(seed & rounding.WORD) + step) & rounding.WORD))


@contextmanager
def refreshed_norms(model: nn.Module, inputs: Iterable[Tensor] | None) -> Iterator[None]:
    """Batch norms take their statistics from ``inputs``, batches that pass through the model as it now is; then back.

    Everything else stays in its mode. None, or a model without batch norms: nothing happens.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if inputs is None or not norms:
        yield
        return
    kept = [({name: b.clone() for name, b in norm.named_buffers()}, norm.momentum, norm.training) for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over the batches
            norm.train()
        with torch.no_grad():
            for x in inputs:
                model(x)
        for norm in norms:
            norm.eval()
        yield
    finally:
        for norm, (buffers, momentum, training) in zip(norms, kept, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(buffers[name])
            norm.momentum = momentum
            norm.training = training
