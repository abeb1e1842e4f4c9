"""The passes over memory. A kernel makes a sweep of the rows of a parameter group: an object with the passes as methods.

* ``observe(s_w, eta_w)``: the surrogate's update *and* the constraint's sums at a trial eta, in one pass;
* ``probe(s_w, eta_w)``: the constraint's sums at another eta, no writes;
* ``move(s_w, eta_w, factor)``: mean and precision, in one pass;
* ``count(eta)``: one more step, and its multiplier, in every parameter's state.

The passes return float64 sums, one line per tensor or piece: ``S_0, S_1, S_2`` of
:func:`arturo.core.trust_region.constraint_sums` and, from ``observe``, the number of missing observations. ``move`` returns
``S_0`` alone. What a kernel does once a step, e.g. cut large tensors into pieces, it does when it makes the sweep.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from arturo.core.trust_region import Scalar


class Sweep(Protocol):
    """The passes over the rows of one parameter group."""

    def observe(self, s_w: Scalar, eta_w: Scalar) -> Tensor: ...

    def probe(self, s_w: Scalar, eta_w: Scalar) -> Tensor: ...

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar) -> Tensor: ...

    def count(self, eta: float) -> None: ...


class DeviceSweep(Sweep, Protocol):
    """One whose writes can be masked on the device: where ``moving`` is False every bit stays as it is."""

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar, moving: Tensor | None = None) -> Tensor: ...

    def count(self, eta: Scalar, moving: Tensor | None = None) -> None: ...
