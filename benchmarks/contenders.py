"""The optimizers that are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from arturo import Arturo
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


CONTENDERS = {
    "native": Contender("Arturo, native", Arturo, 76),
    "native-bf16": Contender("Arturo, native, bfloat16 state", lambda p: Arturo(p, state_dtype=torch.bfloat16), 46),
    "compiled": Contender("Arturo, compiled", lambda p: Arturo(p, fused=True), 76, without_native),
    "eager": Contender("Arturo, eager loop", lambda p: Arturo(p, foreach=False), 76),
    "foreach": Contender("Arturo, _foreach", lambda p: Arturo(p, foreach=True), 76),
    "adamw-fused": Contender("AdamW, fused", lambda p: AdamW(p, fused=True), 28),
    "adamw-foreach": Contender("AdamW, foreach", lambda p: AdamW(p, foreach=True), 28),
    "adamw-loop": Contender("AdamW, for-loop", lambda p: AdamW(p, foreach=False), 28),
    "sgd": Contender("SGD with momentum, foreach", lambda p: SGD(p, lr=1e-3, momentum=0.9, foreach=True), 20),
}


def missing(name: str) -> str | None:
    """Why a contender cannot take part, if it cannot."""
    if name.startswith("native") and not native.available():
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
