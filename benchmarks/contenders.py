"""The optimizers that are measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from arturo import AdaArturo, Arturo
from arturo.kernels import native

REFERENCE = "adamw-fused"  # what ratios are to


@contextmanager
def without_native() -> Iterator[None]:
    """As where the extension was not built: ``fused=True`` then is the compiled kernel."""
    with mock.patch.object(native, "_library", None):
        yield


class Contender(NamedTuple):
    title: str
    make: Callable[[list[Tensor]], Optimizer]
    bytes: int  # memory traffic of a step, per float32 weight: what must be read and written at least
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # while it is made and steps
    longest: int | None = None  # side of a matrix with which it takes part: some decompose whole sides


def peer(name: str, **options: Any) -> Callable[[list[Tensor]], Optimizer]:
    """An optimizer of the package pytorch-optimizer; Muon gets matrices only, its vectors go to AdamW."""

    def make(params: list[Tensor]) -> Optimizer:
        import pytorch_optimizer

        if name != "Muon":
            return cast(Optimizer, getattr(pytorch_optimizer, name)(params, **options))
        from arturo_lab.optimizers.muon import with_adamw

        return cast(Optimizer, with_adamw(lambda: pytorch_optimizer.Muon)()(params, **options))

    return make


LONGEST = 1024
CONTENDERS = {
    "native": Contender("Arturo, native", Arturo, 76),
    "native-bf16": Contender("Arturo, native, bfloat16 state", lambda p: Arturo(p, state_dtype=torch.bfloat16), 46),
    "compiled": Contender("Arturo, compiled", lambda p: Arturo(p, fused=True), 76, without_native),
    "eager": Contender("Arturo, eager loop", lambda p: Arturo(p, foreach=False), 76),
    "foreach": Contender("Arturo, _foreach", lambda p: Arturo(p, foreach=True), 76),
    "ada-kronecker": Contender("AdaArturo", AdaArturo, 40),
    "ada-kronecker-bf16": Contender("AdaArturo, bfloat16 state", lambda p: AdaArturo(p, state_dtype=torch.bfloat16), 28),
    "ada-diagonal": Contender("AdaArturo, diagonal", lambda p: AdaArturo(p, covariance="diagonal"), 36),
    "ada-diagonal-bf16": Contender(
        "AdaArturo, diagonal, bfloat16 state", lambda p: AdaArturo(p, covariance="diagonal", state_dtype=torch.bfloat16), 32
    ),
    "ada-foreach": Contender("AdaArturo, diagonal, _foreach", lambda p: AdaArturo(p, covariance="diagonal", foreach=True), 40),
    "soap": Contender("SOAP", peer("SOAP", lr=3e-3), 40, longest=LONGEST),
    "shampoo": Contender("Shampoo", peer("ScalableShampoo", lr=1e-3), 40, longest=LONGEST),
    "muon": Contender("Muon, AdamW for vectors", peer("Muon", lr=2e-2), 28, longest=LONGEST),
    "adamw-fused": Contender("AdamW, fused", lambda p: AdamW(p, fused=True), 28),
    "adamw-foreach": Contender("AdamW, foreach", lambda p: AdamW(p, foreach=True), 28),
    "adamw-loop": Contender("AdamW, for-loop", lambda p: AdamW(p, foreach=False), 28),
    "sgd": Contender("SGD with momentum, foreach", lambda p: SGD(p, lr=1e-3, momentum=0.9, foreach=True), 20),
}


def missing(name: str) -> str | None:
    """Why a contender cannot take part, if it cannot."""
    if CONTENDERS[name].longest is not None and importlib.util.find_spec("pytorch_optimizer") is None:
        return "the package pytorch-optimizer is not installed"
    if name.startswith(("native", "ada-diagonal", "ada-kronecker")) and not native.available():
        return "the C++ extension was not built"
    if name == "compiled":
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.zeros(1)
        try:
            with without_native():
                Arturo([p], lr=0.0, fused=True).step()  # makes state, compiles nothing
        except RuntimeError as error:
            return f"it cannot be had here ({error})"
    return None
