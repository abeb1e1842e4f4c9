"""Where the surrogate (a, b) comes from. ``kalman``: one two-state Kalman filter per weight, from plain gradients."""

SURROGATES = ("kalman",)
