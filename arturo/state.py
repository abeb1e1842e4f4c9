"""One parameter's state: its buffers, their dtypes and places in memory, and their initial values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arturo import sharding
from arturo.hyperparameters import initial_curvature
from arturo.kernels import native
from arturo.kernels.batch import sum_dtype
from arturo.surrogates import BY_NAME, form_of
from arturo.surrogates.kalman import FACTORED

MODEL = ("prec", "a", "b")  # a surrogate adds its own
PLAIN = ("step", "eta", "scale")  # single numbers, under every parameter
FACTORS = ("L", "Q_L", "R", "Q_R")  # of arturo.AdaArturo, one pair for each side of a tile that turns
HALF = (torch.float16, torch.bfloat16)
LARGE = 1 << 20  # bytes: beyond this the allocator hands out whole pages
PLACE = 576  # bytes between two places: nine cache lines, so that seven places spread over a page of 4096


def initial_state(group: Mapping[str, Any], p: Tensor) -> dict[str, Tensor]:
    """A settled start: b is set by the first observation, the variances are where they would settle.

    State of a DTensor has its layout; single numbers are plain tensors, the same on every process.
    """
    if sharding.is_sharded(p):
        here = initial_state(group, sharding.to_local(p.detach()))
        return {name: x if name in PLAIN else sharding.like(x, p) for name, x in here.items()}
    real = torch.view_as_real(p.detach()) if p.is_complex() else p.detach()
    state = {
        "step": torch.zeros((), dtype=torch.float32, device=p.device),
        "eta": torch.zeros((), dtype=sum_dtype(p.device), device=p.device),
    }
    if group["initial_curvature"] is None:
        state["scale"] = torch.zeros((), dtype=sum_dtype(p.device), device=p.device)
    rounded = group["state_dtype"] is not None
    dtype = group["state_dtype"] if rounded else buffer_dtype(p)
    surrogate = FACTORED if rounded else BY_NAME[group["surrogate"]]
    begin = initial_precision(group), initial_curvature(group), 0.0, *surrogate.initial(group)
    values = dict(zip((*MODEL, *surrogate.buffers), begin, strict=True))
    for place, (name, value) in enumerate(values.items(), 1):
        state[name] = apart(real, dtype, place).fill_(value)
    if real.dtype in HALF:
        state["mean"] = real.to(torch.float32)
    return state


def follow_dtype(p: Tensor, state: dict[str, Tensor]) -> None:
    """Only weights in half precision have a ``mean`` beside them: a model that was cast in a run gains or loses it."""
    here = sharding.to_local(p.detach())
    real = torch.view_as_real(here) if here.is_complex() else here
    if real.dtype not in HALF:
        state.pop("mean", None)
    elif "mean" not in state:
        mean = real.to(torch.float32)
        state["mean"] = sharding.like(mean, p) if sharding.is_sharded(p) else mean


def check_gradient(p: Tensor, grad: Tensor) -> None:
    """torch compares when a gradient is assigned; ``p.data = ...`` and ``p.grad.data = ...`` pass it by."""
    if grad.shape != p.shape:
        raise RuntimeError(f"the gradient of a parameter of shape {tuple(p.shape)} has shape {tuple(grad.shape)}")


def initial_precision(group: Mapping[str, Any]) -> float:
    """1 / Sigma_0; without an initial_variance, the one at which it would settle, (a_0 + rho lambda) / rho."""
    variance, rho = group["initial_variance"], group["prior_weight"]
    return float((initial_curvature(group) + rho * group["prior_precision"]) / rho if variance is None else 1 / variance)


def buffer_names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """What has an entry for each weight in one parameter's state: its keys tell the form."""
    return (*MODEL, *form_of(entry).buffers)


def buffer_dtype(param: Tensor) -> torch.dtype:
    """float32 or wider, and real."""
    dtype = param.dtype.to_real() if param.is_complex() else param.dtype
    return torch.float32 if dtype in HALF else dtype


def apart(like: Tensor, dtype: torch.dtype, place: int) -> Tensor:
    """An empty buffer laid out like ``like``, at an offset in its memory page that differs between places.

    Large CPU tensors all begin at the same address modulo the page size. A pass over eight of them then needs eight
    lines of the same set of the L1 cache at once, as many as it has ways.
    """
    if like.device.type != "cpu" or like.numel() * dtype.itemsize < LARGE or not native.available():
        return torch.empty_like(like, dtype=dtype, memory_format=torch.preserve_format)
    model = torch.empty_like(like, device="meta", memory_format=torch.preserve_format)
    skip = place * PLACE // dtype.itemsize
    return torch.empty(skip + like.numel(), dtype=dtype, device="cpu").as_strided(like.shape, model.stride(), skip)
