"""Step sizes for the ablation on the small Fashion-MNIST CNN: three of each optimizer, chosen on a seed of their own.

    python experiments/ablation_steps.py --out results/ablations/steps.md

The paper tuned every optimizer at length. Here each gets the same short look: three values of its one step size, half a
decade apart, trained for a few epochs on a part of the images with seed 100, which no result uses. The lowest train loss of
the last epoch wins; the test set plays no part.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from arturo_lab.data import loading
from arturo_lab.runs.config import RunConfig
from arturo_lab.training.train import train

TASK, SEED, EPOCHS, IMAGES = "fmnist-small-cnn", 100, 2, 5_100
GRID = {  # optimizer -> its step size and the values
    "arturo": ("kl_bound", (0.003, 0.03, 0.3)),  # a decade: the step goes with its root
    "arturo-adam": ("kl_bound", (0.001, 0.01, 0.1)),
    "adam": ("lr", (1e-3, 3e-3, 1e-2)),
    "arturo-hutchinson": ("kl_bound", (0.001, 0.01, 0.1)),
    "adahessian": ("lr", (0.015, 0.05, 0.15)),
    "arturo-hessian": ("kl_bound", (0.001, 0.01, 0.1)),
    "adahessian-hessian": ("lr", (0.0015, 0.005, 0.015)),  # 0.05 and more: a dead network
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the table there")
    parser.add_argument("--optimizers", nargs="+", default=list(GRID), choices=list(GRID))
    arguments = parser.parse_args()
    images = loading.load("fashion-mnist")
    images = replace(images, test_inputs=images.test_inputs[:100], test_targets=images.test_targets[:100])  # not looked at
    rows = [f"{EPOCHS} epochs, {IMAGES:,} images, seed {SEED}; train loss of the last epoch, lowest in bold.", ""]
    rows += ["| optimizer | step size | losses at its values |", "|---|---|---|"]
    for optimizer in arguments.optimizers:
        name, values = GRID[optimizer]
        losses = []
        for value in values:
            config = RunConfig.for_task(TASK, optimizer, SEED, EPOCHS, subset=IMAGES, overrides={name: value}, threads=1)
            losses.append(train(config, images)[-1].train_loss)
            print(optimizer, name, value, round(losses[-1], 4), flush=True)
        best = min(loss for loss in losses if loss == loss)
        cells = ("**{0:g}: {1:.4f}**" if loss == best else "{0:g}: {1:.4f}" for loss in losses)
        rows.append(
            f"| {optimizer} | `{name}` | {', '.join(c.format(v, x) for c, v, x in zip(cells, values, losses, strict=True))} |"
        )
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(
                "\n".join(
                    [
                        "# Step sizes for the ablation",
                        "",
                        *rows,
                        "",
                        "`python experiments/ablation_steps.py --out results/ablations/steps.md`",
                        "",
                    ]
                )
            )


if __name__ == "__main__":
    main()
