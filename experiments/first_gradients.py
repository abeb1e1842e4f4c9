"""How large the first gradients are: the root mean square of their entries that are not 0, over the seeds.

    python experiments/first_gradients.py

`arturo.loss_scale.BEND` was chosen from it (experiments/LOG.md).
"""

from __future__ import annotations

import argparse
import statistics

import torch

from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.task import Task
from arturo_lab.training.batches import Batches

CHOSEN_ON = ("digits-mlp", "digits-cnn", "fmnist-cnn-short", "fmnist-small-resnet", "byte-transformer")


def first_gradient(task: Task, data: Examples, seed: int) -> tuple[float, float]:
    """The root mean square over the entries that are not 0, and the part of all entries that these are."""
    torch.manual_seed(seed)
    model = task.model()
    inputs, targets = next(iter(Batches(task, data, seed)))
    task.loss(model(inputs), targets).backward()
    g = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
    nonzero = g[g != 0]
    return nonzero.square().mean().sqrt().item(), nonzero.numel() / g.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(CHOSEN_ON), metavar="TASK", help="see `arturo list`")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | median | least | largest | not 0 |\n|---|---|---|---|---|")
    for name in arguments.tasks:
        task = TASKS[name]
        data = loading.load(task.data)
        values, parts = zip(*(first_gradient(task, data, seed) for seed in range(arguments.seeds)), strict=True)
        print(f"| {name} | {statistics.median(values):.2g} | {min(values):.2g} | {max(values):.2g} | {min(parts):.0%} |")


if __name__ == "__main__":
    main()
