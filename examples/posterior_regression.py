"""A curve through noisy points, with an honest band: arTuRO's posterior against the exact one.

    python examples/posterior_regression.py             # ten seconds; writes posterior_regression.png

A sum of seven cosines is linear in its weights, so the exact posterior is a formula. On the left the cosines are made
orthogonal over the data, as whitening does: the exact posterior is then diagonal, and the two agree. On the right they are
unchanged: their weights are correlated, the diagonal ignores it, and where there are no data its band is too narrow.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

from arturo import Arturo, Prediction, predict

POINTS, COSINES, NOISE, PRIOR = 40, 7, 0.3, 0.1  # noise: standard deviation; prior: precision of each weight
torch.set_default_dtype(torch.float64)


def cosines(x: Tensor) -> Tensor:
    return torch.cos(torch.arange(COSINES) * torch.pi * (x.unsqueeze(1) + 1.5) / 3)


def trained(features: Tensor, y: Tensor) -> tuple[nn.Linear, Arturo]:
    """The ordinary loop: the mean negative log-likelihood of all points, backward, step."""
    model = nn.Linear(features.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    # A number for initial_curvature: prior_weight is 1 / N only in units of the loss.
    options = {"prior_weight": 1 / POINTS, "prior_precision": PRIOR, "initial_curvature": 0.1, "kl_bound": 0.5, "drift": 1e-3}
    optimizer = Arturo(model.parameters(), **options)
    for t in range(1500):
        optimizer.param_groups[0]["lr"] = 1 - t / 1500
        optimizer.zero_grad()
        loss(model(features), y).backward()
        optimizer.step()
    return model, optimizer


def loss(output: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (output - y).square().mean() / NOISE**2


def exact(features: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the curve: Bayesian linear regression, all correlations included."""
    S = features.T @ features / NOISE**2 + PRIOR * torch.eye(features.shape[1])
    mean = at @ torch.linalg.solve(S, features.T @ y / NOISE**2)
    return mean.squeeze(1), (at * torch.linalg.solve(S, at.T).T).sum(1).sqrt()


def draw(bands: dict[str, tuple[Prediction, tuple[Tensor, Tensor]]], x: Tensor, y: Tensor, grid: Tensor, path: Path) -> None:
    picture = Figure(figsize=(9.5, 3.8), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, 2, sharey=True)
    for axes, (title, (ours, (mean, sd))) in zip(panels, bands.items(), strict=True):
        m, s = ours.mean.squeeze(1), ours.epistemic.squeeze(1).sqrt()
        axes.fill_between(
            grid, m - 2 * s, m + 2 * s, color="#D55E00", alpha=0.3, linewidth=0, label="arTuRO, ±2 sd of the curve"
        )
        axes.plot(grid, m, color="#D55E00", label="arTuRO, mean")
        for sign, label in ((-1, "exact, mean ±2 sd"), (0, None), (1, None)):
            axes.plot(grid, mean + 2 * sign * sd, color="#333333", linestyle="--", linewidth=1, label=label)
        axes.plot(x, y, ".", color="#0072B2", markersize=5, label="data")
        axes.set(title=title, xlabel="x", ylim=(-3.2, 3.2))
    panels[0].set_ylabel("y")
    panels[0].legend(loc="lower center", fontsize=8, frameon=False)
    picture.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("posterior_regression.png"), help="default: posterior_regression.png")
    out = parser.parse_args().out
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-1, -0.25, POINTS // 2), torch.linspace(0.25, 1, POINTS // 2)])
    y = (torch.sin(3 * x) + NOISE * torch.randn(POINTS)).unsqueeze(1)
    grid = torch.linspace(-1.5, 1.5, 301)
    _, R = torch.linalg.qr(cosines(x))
    orthogonal = POINTS**0.5 * torch.linalg.inv(R)  # cosines(x) @ orthogonal has orthogonal columns over the data
    bands = {}
    for title, change in (
        ("Orthogonal features: the exact band", orthogonal),
        ("Plain cosines: what the diagonal loses", torch.eye(COSINES)),
    ):
        features, at = cosines(x) @ change, cosines(grid) @ change
        model, optimizer = trained(features, y)
        posterior = optimizer.posterior(ess=POINTS, model=model, data=(features, y), loss=loss)
        ours = predict(model, posterior, at, 2000, likelihood="gaussian", noise_variance=NOISE**2)
        bands[title] = ours, exact(features, y, at)
        ratio = ours.epistemic.squeeze(1).sqrt() / bands[title][1][1]
        inside = (grid.abs() <= 1) & (grid.abs() >= 0.25)
        print(
            f"{title}: sd over the exact one {ratio[inside].mean():.2f} at the data, {ratio[~inside].mean():.2f} away from it"
        )
    draw(bands, x, y, grid, out)
    print(f"figure: {out}")


if __name__ == "__main__":
    main()
