"""Do recipes made for AdamW train well with AdaArturo, unchanged? Two of them, on the byte transformer.

    python experiments/recipes.py --seeds 1

nanogpt: two groups (matrices with weight decay 0.1, the rest without), betas (0.9, 0.95), lr 6e-4, linear warm-up, cosine to a
tenth, gradients clipped to a norm of 1. layer-wise: the same, and every block has 0.75 times the lr of the one above it, as in
the recipes that fine-tune transformers; the embeddings have the least. Everything but the class is the same for both.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import Any

import torch

from arturo import AdaArturo
from arturo_lab.data import loading
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.batches import Batches
from arturo_lab.training.train import evaluate

OPTIMIZERS = {"AdamW": torch.optim.AdamW, "AdaArturo": AdaArturo}
RECIPES = ("nanogpt", "layer-wise")


def depth(name: str, blocks: int) -> int:
    """How many layers are above a parameter: those behind the last block have none."""
    if name.startswith("blocks."):
        return blocks - 1 - int(name.split(".")[1])
    return blocks if name in ("embed.weight", "position") else 0


def groups_of(recipe: str, model: torch.nn.Module) -> list[dict[str, Any]]:
    """Matrices with decay and the rest without, for each factor on lr."""
    named = list(model.named_parameters())
    blocks = 1 + max(int(name.split(".")[1]) for name, _ in named if name.startswith("blocks."))
    factors = {name: 0.75 ** depth(name, blocks) if recipe == "layer-wise" else 1.0 for name, _ in named}
    return [
        {
            "params": [p for name, p in named if factors[name] == factor and (p.dim() >= 2) == decays],
            "weight_decay": 0.1 if decays else 0.0,
            "factor": factor,
        }
        for factor in sorted(set(factors.values()))
        for decays in (True, False)
        if any(factors[name] == factor and (p.dim() >= 2) == decays for name, p in named)
    ]


def train(recipe: str, name: str, lr: float, seed: int) -> float:
    """The validation loss at the end."""
    task = TASKS["byte-transformer"]
    data = loading.load(task.data).fold("1/5")
    torch.manual_seed(seed)
    model = task.model()
    params = list(model.parameters())
    optimizer = OPTIMIZERS[name](groups_of(recipe, model), lr=lr, betas=(0.9, 0.95))
    steps = task.epochs * task.steps(len(data), task.batch_size)
    warmup = steps // 20
    for step, (inputs, targets) in zip(range(steps), Batches(task, data, seed), strict=False):
        progress = (step - warmup) / (steps - warmup)
        cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"] * ((step + 1) / (warmup + 1) if step < warmup else cosine)
        optimizer.zero_grad(set_to_none=True)
        task.loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    return evaluate(model, data.test_inputs, data.test_targets, task)["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--lr", type=float, nargs="+", default=[6e-4])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/adaptive/recipes.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.seeds)
    rows = ["# AdamW's recipes on the byte transformer", "", "Validation loss, nats per byte, for each seed.", ""]
    rows += ["| recipe | lr | " + " | ".join(OPTIMIZERS) + " |", "|---" * (len(OPTIMIZERS) + 2) + "|"]
    for recipe, lr in itertools.product(arguments.recipes, arguments.lr):
        cells = [", ".join(f"{train(recipe, name, lr, seed):.3f}" for seed in seeds) for name in OPTIMIZERS]
        rows.append(f"| {recipe} | {lr:g} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    rates, recipes = " ".join(f"{lr:g}" for lr in arguments.lr), " ".join(arguments.recipes)
    rows += ["", f"`python experiments/recipes.py --recipes {recipes} --lr {rates} --seeds {arguments.seeds}`", ""]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(rows))


if __name__ == "__main__":
    main()
