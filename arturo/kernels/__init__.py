"""The passes over memory. A kernel module has four functions with one signature each:

* ``prepare(batch)``: whatever the kernel wants to do once a step, e.g. cut large tensors into pieces;
* ``observe(batch, s_w, eta_w)``: the surrogate's update *and* the constraint's sums at a trial eta, in one pass;
* ``probe(batch, s_w, eta_w)``: the constraint's sums at another eta, no writes;
* ``move(batch, s_w, eta_w, scale)``: mean and precision, in one pass.

The passes take what ``prepare`` gave and return float64 sums, one row per tensor or piece: ``S_0, S_1, S_2`` of
:func:`arturo.trust_region.constraint_sums` and, from ``observe``, the number of missing observations. ``move`` returns
``S_0`` alone.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from arturo.kernels.batch import Batch
from arturo.trust_region import Scalar


class Kernel(Protocol):
    """The signature of the passes; a module of this package is one."""

    def prepare(self, batch: Batch) -> Any: ...

    def observe(self, batch: Any, s_w: Scalar, eta_w: Scalar) -> Tensor: ...

    def probe(self, batch: Any, s_w: Scalar, eta_w: Scalar) -> Tensor: ...

    def move(self, batch: Any, s_w: Scalar, eta_w: Scalar, scale: Scalar, moving: Tensor | None = None) -> Tensor: ...
