"""The formulas that everything else is built on: the trust region, its dual, its bounds, stochastic rounding."""
