"""Passes over memory per step on a real training run: the exact dual against the published rule.

    python benchmarks/dual_cost.py --steps 200

Trains the Fashion-MNIST CNN at batch 255 with the paper's values and counts. A step costs its evaluations of the
constraint plus one; two is the least there can be. Also printed: how far KL / bound strays on active steps.
"""

from __future__ import annotations

import argparse

import torch
from rich.progress import track
from torch.nn.functional import cross_entropy

from arturo import PAPER, Arturo
from arturo_lab.data import loading
from arturo_lab.tasks import models

TUNED = {
    "kl_bound": 0.08567456308209788,
    "prior_weight": 0.05865661620286048,
    "noise": 2.8167911612651997,
    "drift": 0.017392958232048346,
    "weight_decay": 1.5403963328610538e-06,
}
RULES = {
    "exact (newton), settled start": {},
    "published (bisection), published start": PAPER,
}


def run(options: dict[str, object], steps: int, seed: int) -> list[tuple[int, bool, float]]:
    """evaluations, active and KL / bound of each step; lr falls by sqrt(0.006) after half and three quarters of them."""
    torch.manual_seed(seed)
    source = loading.load("fashion-mnist")
    model = models.fashion_mnist_cnn()
    optimizer = Arturo(model.parameters(), **{"initial_curvature": 0.1, **TUNED, **options})
    milestones = [steps // 2, 3 * steps // 4]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.006**0.5)
    generator = torch.Generator().manual_seed(seed)
    log = []
    for _ in track(range(steps), description=f"{options.get('dual', 'newton'):10}"):
        index = torch.randint(len(source.train_targets), (255,), generator=generator)
        images = source.train_inputs[index].float() / 255
        optimizer.zero_grad()
        cross_entropy(model(images), source.train_targets[index]).backward()
        optimizer.step()
        schedule.step()
        info = optimizer.last_step
        log.append((info.evaluations, info.active, info.kl / info.bound))
    return log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| dual | passes per step | steps with one evaluation | KL / bound on active steps |")
    print("|---|---|---|---|")
    for name, options in RULES.items():
        log = run(options, arguments.steps, arguments.seed)
        passes = sum(evaluations + 1 for evaluations, _, _ in log) / len(log)
        single = sum(evaluations == 1 for evaluations, _, _ in log) / len(log)
        ratios = [ratio for _, active, ratio in log if active]
        print(f"| {name} | {passes:.2f} | {single:.0%} | {min(ratios):.4f} to {max(ratios):.4f} |")


if __name__ == "__main__":
    main()
