"""Where the surrogate (a, b) comes from.

* ``kalman``: one two-state Kalman filter per weight, from plain gradients (:mod:`arturo.surrogates.kalman`);
* ``adam``: Adam's two moments, from plain gradients (:mod:`arturo.surrogates.adam_moments`);
* ``hessian``, ``ggn``, ``hutchinson``, or a function of the user's: running averages of the gradient and of a diagonal of the
  Hessian (:mod:`arturo.surrogates.diag_hessian`), which :mod:`arturo.surrogates.diagonals` gets.

All but the filter keep averages (:mod:`arturo.surrogates.averages`) and go through memory once more in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arturo.surrogates.adam_moments import MOMENTS
from arturo.surrogates.diag_hessian import DIAGONAL
from arturo.surrogates.kalman import FACTORED, KALMAN
from arturo.surrogates.surrogate import Surrogate

__all__ = ["BY_NAME", "FORMS", "FUNCTION", "SURROGATES", "Surrogate", "form_of"]

FUNCTION = "function"  # what a parameter group says of a function that gives the diagonal: groups hold plain data only
BY_NAME = {"kalman": KALMAN, "adam": MOMENTS, "hessian": DIAGONAL, "ggn": DIAGONAL, "hutchinson": DIAGONAL, FUNCTION: DIAGONAL}
SURROGATES = tuple(name for name in BY_NAME if name != FUNCTION)
FORMS = (KALMAN, FACTORED, MOMENTS)  # one for each set of buffers; FACTORED is the filter's with state in bfloat16


def form_of(state: Mapping[str, Any]) -> Surrogate:
    """The form of a parameter's state: its keys tell."""
    if MOMENTS.buffers[-1] in state:
        return MOMENTS
    return FACTORED if FACTORED.buffers[-1] in state else KALMAN
