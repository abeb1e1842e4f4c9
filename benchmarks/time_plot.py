"""The figure of time_to_target.py: validation loss over seconds of training, a panel per problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

STYLES = {"adamw": ("#444444", "--"), "adaarturo": ("#c03a2b", "-"), "adaarturo diagonal": ("#2f6db3", "-.")}


def draw(results: dict[str, Any], path: Path) -> None:
    """AdamW with its best lr, and AdaArturo: the median over seeds, with a band from the best to the worst of them."""
    problems = list(results["problems"].values())
    figure, axes = pyplot.subplots(1, len(problems), figsize=(4 * len(problems), 3.2), squeeze=False, layout="constrained")
    for axis, problem in zip(axes[0], problems, strict=True):
        for name, (color, style) in STYLES.items():
            row = problem["contenders"][problem["best"] if name == "adamw" else name]
            curves = np.array(row["curves"])  # seeds, evaluations, (steps, seconds, loss)
            seconds, losses = np.median(curves[:, :, 1], 0), curves[:, :, 2]
            label = f"AdamW, lr {problem['best'].split()[1]}" if name == "adamw" else name.replace("adaarturo", "AdaArturo")
            axis.plot(seconds, np.median(losses, 0), style, color=color, label=label)
            axis.fill_between(seconds, losses.min(0), losses.max(0), color=color, alpha=0.15, linewidth=0)
        axis.axhline(problem["target"], color="#444444", linewidth=0.8, linestyle=":")
        lowest, first = min(min(r["final"] for r in problem["contenders"].values()), problem["target"]), axis.get_ylim()[1]
        axis.set_ylim(0.95 * lowest, min(first, 3 * problem["target"]))
        axis.set(title=problem["title"], xlabel="seconds of training", ylabel="validation loss")
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
