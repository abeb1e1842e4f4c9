"""What a step needs of a surrogate: the buffers it keeps, their initial values, and how they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

Tensors = tuple[Tensor, ...]


class Observation(NamedTuple):
    """What a step has seen of one parameter."""

    g: Tensor  # the gradient, in the model's units
    seen: Tensor  # false where it is missing
    m: Tensor  # the mean at which it was taken
    first: bool | Tensor = False  # nothing was observed before
    h: Tensor | None = None  # a diagonal of the Hessian
    weights: tuple[Tensor, Tensor] | None = None  # of this observation in running averages: of g, of h


class Surrogate(NamedTuple):
    """A model of the loss, (a, b) per weight.

    Attributes:
        buffers: names of what it keeps in a parameter's state besides ``a`` and ``b``.
        initial: their values before the first step, from the parameter group.
        observe: ``(a, b, memory, observation, constants)`` to the new ``(a, b, *memory)``. Pure.
        keeps_averages: whether its update is a separate pass, before the others.
    """

    buffers: tuple[str, ...]
    initial: Callable[[Mapping[str, Any]], tuple[float, ...]]
    observe: Callable[[Tensor, Tensor, Tensors, Observation, Any], Tensors]
    keeps_averages: bool
