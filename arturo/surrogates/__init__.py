"""Where the surrogate (a, b) comes from.

* ``kalman``: one two-state Kalman filter per weight, from plain gradients (:mod:`arturo.surrogates.kalman`);
* ``adam``: Adam's two moments, from plain gradients (:mod:`arturo.surrogates.adam_moments`);
* ``hessian``, ``ggn``, ``hutchinson``, or a function of the user's: running averages of the gradient and of a diagonal of the
  Hessian (:mod:`arturo.surrogates.diag_hessian`), which :mod:`arturo.surrogates.diagonals` gets.

All but the filter keep averages (:mod:`arturo.surrogates.averages`) and go through memory once more in each step.
"""

SURROGATES = ("kalman", "adam", "hessian", "ggn", "hutchinson")
FUNCTION = "function"  # what a parameter group says of a function that gives the diagonal: groups hold plain data only
