"""The optimizers, their settings and the paper's tuned values."""
