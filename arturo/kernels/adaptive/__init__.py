"""AdaArturo's passes over memory. A kernel is made of the rows of one step and has two methods, called once each:

* ``observe()``: the noise, in place. Returns seven sums per row: squares of the weights (of a vector's distance from its
  start), sums of s, M^2 / s, M E / s and E^2 / s, the number of missing entries. They tell how far to trust the innovation E of
  a tensor. A turned matrix trusts each tile by its own sums: its M is up to date afterwards, and the seventh sum is its new
  M^2 / s (0 on the diagonal);
* ``move(keep, length, gain)``: M <- M + gain E; mean <- keep mean - length M / s; a number of each per row (in arrays on
  the host, else in tensors).

``eager``, ``foreach``, ``compiled`` and ``native`` take tensors whose Gaussian is diagonal in the weights, ``tiles`` and
``native_tiles`` those that are turned; :mod:`arturo.kernels.adaptive.choice` picks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from arturo.kernels.adaptive.row import AdaptiveRow


class Kernel(Protocol):
    @property
    def rows(self) -> Sequence[AdaptiveRow]: ...

    def observe(self) -> Tensor: ...

    def move(self, keep: Any, length: Any, gain: Any) -> None: ...
