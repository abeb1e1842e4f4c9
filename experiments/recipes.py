"""Does a recipe made for AdamW train well with AdaArturo, unchanged? nanoGPT's, on the byte transformer.

    python experiments/recipes.py --seeds 1

Two groups (matrices with weight decay 0.1, the rest without), betas (0.9, 0.95), lr 6e-4, linear warm-up, cosine to a tenth,
gradients clipped to a norm of 1. Everything but the class is the same for both.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from problems import problems

from arturo import AdaArturo

OPTIMIZERS = {"AdamW": torch.optim.AdamW, "AdaArturo": AdaArturo}


def train(name: str, lr: float, seed: int) -> float:
    problem = problems("1/5")["lm-docstrings"]
    model = problem.build(seed)
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = OPTIMIZERS[name](groups, lr=lr, betas=(0.9, 0.95))
    warmup = problem.steps // 20
    for step, (x, y) in zip(range(problem.steps), problem.batches(seed), strict=False):
        progress = (step - warmup) / (problem.steps - warmup)
        cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = lr * ((step + 1) / (warmup + 1) if step < warmup else cosine)
        optimizer.zero_grad(set_to_none=True)
        problem.loss(model, x, y).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    return problem.evaluate(model)["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, nargs="+", default=[6e-4])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/adaptive/recipes.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.seeds)
    rows = ["# nanoGPT's recipe on the byte transformer", "", "Validation loss, nats per byte, for each seed.", ""]
    rows += ["| lr | " + " | ".join(OPTIMIZERS) + " |", "|---" * (len(OPTIMIZERS) + 1) + "|"]
    for lr in arguments.lr:
        cells = [", ".join(f"{train(name, lr, seed):.3f}" for seed in seeds) for name in OPTIMIZERS]
        rows.append(f"| {lr:g} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    rates = " ".join(f"{lr:g}" for lr in arguments.lr)
    rows += ["", f"`python experiments/recipes.py --lr {rates} --seeds {arguments.seeds}`", ""]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(rows))


if __name__ == "__main__":
    main()
