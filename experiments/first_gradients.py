"""How large the first gradients are: the root mean square of their entries that are not 0, over the seeds.

`arturo.loss_scale.BEND` was chosen from it (docs/tuning.md).
"""

from __future__ import annotations

import argparse
import statistics

import torch
from problems import Problem, problems


def first_gradient(problem: Problem, seed: int) -> tuple[float, float]:
    """The root mean square over the entries that are not 0, and the part of all entries that these are."""
    model = problem.build(seed)
    x, y = next(problem.batches(seed))
    problem.loss(model, x, y).backward()
    g = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
    nonzero = g[g != 0]
    return nonzero.square().mean().sqrt().item(), nonzero.numel() / g.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = problems("test")
    parser.add_argument("--problems", nargs="+", default=list(every), choices=list(every))
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| problem | median | least | largest | not 0 |\n|---|---|---|---|---|")
    for name in args.problems:
        values, parts = zip(*(first_gradient(every[name], seed) for seed in range(args.seeds)), strict=True)
        print(f"| {name} | {statistics.median(values):.2g} | {min(values):.2g} | {max(values):.2g} | {min(parts):.0%} |")


if __name__ == "__main__":
    main()
