"""AdaArturo's passes over memory. A kernel is made of the rows of one step and has two methods, called once each:

* ``observe()``: the noise, in place. Returns seven sums per row: squares of the weights (of a vector's distance from its
  start), sums of s, M^2 / s, M E / s and E^2 / s, the number of missing entries. They tell how far to trust the innovation E of
  a tensor. A turned matrix trusts each tile by its own sums: its M is up to date afterwards, and the seventh sum is its new
  M^2 / s (0 on the diagonal);
* ``move(moves)``: M <- M + gain E, step = M / s; mean <- keep (mean - pull (mean - start)) - length step, where a matrix starts
  at 0 and entries whose step is 0 are not pulled: what no gradient has reached stays.

``eager``, ``foreach``, ``compiled`` and ``native`` take tensors whose Gaussian is diagonal in the weights, ``tiles`` and
``native_tiles`` those that are turned; :mod:`arturo.kernels.adaptive.choice` picks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from arturo.kernels.adaptive.row import AdaptiveRow


class Moves(NamedTuple):
    """What a move needs, a number for each row: a tensor of each on a device, an array on the host."""

    keep: Any  # by weight decay
    pull: Any  # of the anchor
    length: Any
    gain: Any


class Kernel(Protocol):
    @property
    def rows(self) -> Sequence[AdaptiveRow]: ...

    def observe(self) -> Tensor: ...

    def move(self, moves: Moves) -> None: ...
