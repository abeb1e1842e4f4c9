"""Tables that come with scikit-learn, and made-up rows for problems that need none."""

from __future__ import annotations

import torch

from arturo_lab.data.examples import Examples


def read_table(name: str, classes: int | None = None) -> Examples:
    """A table of scikit-learn's, standardised by its training rows; a fifth of the rows is for the test.

    The targets of a regression are standardised too: a squared error of 1 is that of the mean.
    """
    from sklearn import datasets  # type: ignore[import-untyped]

    bunch = getattr(datasets, f"load_{name}")()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    fifth = len(y) // 5
    # The second fifth goes last: the rows are those, in that order, of the runs in results/adaptive.
    test, train = order[:fifth], torch.cat([order[2 * fifth :], order[fifth : 2 * fifth]])
    x = (x - x[train].mean(0)) / x[train].std(0)
    if classes is None:
        y = ((y - y[train].mean()) / y[train].std()).float()
    return Examples(name.replace("_", "-"), x[train], y[train], x[test], y[test], classes)


def read_noise(rows: int = 10_000, width: int = 20) -> Examples:
    """Normal noise whose mean is exactly zero to train on, and one row of zeros to test on: what is left without the noise."""
    noise = torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (noise - noise.mean(0)).float()
    return Examples("noise", noise, torch.zeros(rows), torch.zeros(1, width), torch.zeros(1))


def read_nothing(rows: int = 64) -> Examples:
    """Rows of nothing, for a function that depends on its weights alone."""
    return Examples("nothing", torch.zeros(rows, 1), torch.zeros(rows), torch.zeros(1, 1), torch.zeros(1))
