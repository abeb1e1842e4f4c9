"""The plot of step_time.py: time per step against the number of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contenders import CONTENDERS
from machine import plural

# What the plot shows: colours by Okabe and Ito, told apart without seeing red or green, and markers.
SWEEP = {
    "native": ("#0072B2", "o"),
    "native-bf16": ("#009E73", "s"),
    "eager": ("#D55E00", "^"),
    "adamw-fused": ("#000000", "D"),
}
TRAFFIC = {76: (0, (5, 2)), 28: (0, (1, 1.5))}  # bytes per weight, and the line's dashes
GREY = "#777777"


def draw(results: dict[str, Any], path: Path) -> None:
    """Time per step against the number of weights, and the time that the traffic alone takes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sweep, speed = results["sweep"], max(results["gb_per_s"]["update"])
    weights = np.array([point["weights"] for point in sweep], dtype=float)
    ends = []
    figure, axes = plt.subplots(figsize=(7.6, 5.2), layout="constrained")
    for name, (color, marker) in SWEEP.items():
        if name not in sweep[-1]["contenders"]:
            continue
        low, median, high = np.array([point["contenders"][name]["ms"] for point in sweep]).T
        axes.fill_between(weights, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(weights, median, color=color, marker=marker, markersize=4, linewidth=1.6)
        ends.append((median[-1], CONTENDERS[name].title, color))
    lowest = min(point["contenders"][name]["ms"][0] for point in sweep for name in point["contenders"]) / 2
    for count, style in TRAFFIC.items():
        ms = 1e3 * count * weights[-1] / speed / 1e9
        start = weights[-1] * lowest / ms  # where the line enters the figure
        axes.plot([start, weights[-1]], [lowest, ms], color=GREY, linestyle=style, linewidth=1.2, zorder=1)
        ends.append((ms, f"{count} bytes per weight at {speed:.0f} GB/s", GREY))
    axes.set(xscale="log", yscale="log", xlabel="weights, in one tensor", ylabel="time per step (ms)", ylim=(lowest, None))
    axes.set_xlim(weights[0] / 1.5, weights[-1] * 1.2)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_ylim()
    line = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}
    for (y, text, color), place in zip(sorted(ends), spread([y for y, _, _ in ends], (high / low) ** (1 / 26)), strict=True):
        axes.annotate(
            text, (weights[-1], y), (weights[-1] * 1.5, place), color=color, va="center", fontsize=9,
            arrowprops={**line, "color": color}, annotation_clip=False,
        )  # fmt: skip
    threads, cpu = results["machine"]["threads"], results["machine"]["cpu"]
    title = f"One optimizer step, {plural(threads, 'thread')}, {cpu}; grey: the memory traffic alone"
    axes.set_title(title, fontsize=10, loc="left")
    figure.savefig(path, dpi=160)
    plt.close(figure)


def spread(values: Sequence[float], apart: float) -> list[float]:
    """Near the values, in rising order, each at least ``apart`` times the one below: where labels do not overlap."""
    up, down = sorted(values), sorted(values)
    for i in range(1, len(up)):
        up[i] = max(up[i], up[i - 1] * apart)
    for i in reversed(range(len(down) - 1)):
        down[i] = min(down[i], down[i + 1] / apart)
    return [math.sqrt(a * b) for a, b in zip(up, down, strict=True)]
