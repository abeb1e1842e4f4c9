"""Does a noiseless training come to rest under a constant lr? AdaArturo, its twin without the curvature, and AdamW.

    python experiments/noiseless.py

A linear regression with two weights and 64 exact observations, and a quadratic in a matrix and a vector with curvatures from
0.1 to 1. The table has the worst loss of the last 300 of 1000 steps: the median over the starts, and the worst start.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from variants import Variant

from arturo import AdaArturo

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdaArturo": AdaArturo,
    "its twin": Variant,
    "its twin without the curvature": lambda params, lr: Variant(params, lr=lr, newton=None),
    "AdamW": lambda params, lr: torch.optim.AdamW(params, lr=lr, weight_decay=0.0),
}
Problem = tuple[list[nn.Parameter], Callable[[], Tensor]]


def regression(generator: torch.Generator) -> Problem:
    x = torch.randn(64, 2, generator=generator)
    y, w = x @ torch.tensor([1.0, -2.0]), nn.Parameter(0.5 * torch.randn(1, 2, generator=generator))
    return [w], lambda: (x @ w[0] - y).square().mean()


def quadratic(generator: torch.Generator) -> Problem:
    params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 4), (4,))]
    curvatures = [torch.logspace(-1, 0, p.numel()).view(p.shape) for p in params]
    return params, lambda: torch.stack(
        [(0.5 * h * (p - 1).square()).sum() for p, h in zip(params, curvatures, strict=True)]
    ).sum()


def worst_end(make: Callable[..., Any], lr: float, problem: Problem, steps: int = 1000, last: int = 300) -> float:
    params, loss_of = problem
    optimizer, losses = make(params, lr=lr), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return max(losses[-last:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| problem | lr | optimizer | median | worst |\n|---|---|---|---|---|")
    for problem in (regression, quadratic):
        for lr in arguments.lr:
            for name, make in OPTIMIZERS.items():
                starts = (problem(torch.Generator().manual_seed(seed)) for seed in range(arguments.starts))
                ends = [worst_end(make, lr, start) for start in starts]
                print(f"| {problem.__name__} | {lr:g} | {name} | {statistics.median(ends):.1e} | {max(ends):.1e} |", flush=True)


if __name__ == "__main__":
    main()
