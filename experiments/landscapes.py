"""How the settings of ``arturo show`` were chosen: 24 settings per optimizer and landscape, the best by 8 seeds.

    python experiments/landscapes.py            # some five minutes on one core; writes results/show/grid.json and grid.md

The score is the mean over the seeds of log10 of the loss after the last step, cut off at 1e-12 and 1e8. The seeds are
not those that ``arturo show`` shows by default.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from arturo_lab.show.descent import STEPS, descend
from arturo_lab.show.landscapes import LANDSCAPES

SEEDS = range(100, 108)
HALF_DECADES = [1, 3, 10, 30, 100, 300, 1000, 3000]


def grid(optimizer: str) -> list[dict[str, Any]]:
    """Eight step sizes, half a decade apart, times three values of the second thing one would turn."""
    if optimizer == "sgd":
        return [{"lr": 1e-4 * k, "momentum": m} for k, m in itertools.product(HALF_DECADES, (0.0, 0.9, 0.99))]
    if optimizer == "adam":
        return [{"lr": 1e-3 * k, "betas": [0.9, b]} for k, b in itertools.product(HALF_DECADES, (0.9, 0.99, 0.999))]
    # A step's length goes with the root of the bound: whole decades. 0.03 is the default drift.
    return [{"kl_bound": 10.0**k, "drift": q} for k, q in itertools.product(range(-4, 4), (0.001, 0.03, 1.0))]


def score(landscape: str, optimizer: str, settings: dict[str, Any]) -> float:
    """Mean log10 of the last loss. A run that diverged counts as 1e8."""
    logs = []
    for seed in SEEDS:
        way = descend(LANDSCAPES[landscape], optimizer, settings, STEPS, seed)
        last = 1e8 if way.diverged else float(way.losses[-1])
        logs.append(math.log10(min(max(last, 1e-12), 1e8)))
    return sum(logs) / len(logs)


def rounded(settings: dict[str, Any]) -> dict[str, Any]:
    """Without the last bits of 3e-3 * 3."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in settings.items()}


def markdown(trials: list[dict[str, Any]]) -> str:
    """The best of each grid, and whether it stands at its edge."""
    lines = [
        f"The best of 24 settings after {STEPS} steps; the score is the mean log10 of the last loss over {len(SEEDS)} seeds.",
        "",
        "| landscape | optimizer | settings | score | at the edge of its grid |",
        "|---|---|---|---|---|",
    ]
    for best in chosen(trials):
        settings = ", ".join(f"{name} {value}" for name, value in best["settings"].items())
        edge = ", ".join(at_edge(best)) or "-"
        lines.append(f"| {best['landscape']} | {best['optimizer']} | {settings} | {best['score']:.2f} | {edge} |")
    return "\n".join(lines) + "\n"


def at_edge(trial: dict[str, Any]) -> list[str]:
    """The settings that stand at an end of their grid, where a wider one might have found better."""
    values = {
        name: sorted({str(s[name]): s[name] for s in map(rounded, grid(trial["optimizer"]))}.values())
        for name in trial["settings"]
    }
    return [name for name, value in trial["settings"].items() if value in (values[name][0], values[name][-1])]


def chosen(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lowest score of each landscape and optimizer; of equal ones the first, which has the smallest steps."""
    pairs = dict.fromkeys((trial["landscape"], trial["optimizer"]) for trial in trials)
    return [
        min((trial for trial in trials if (trial["landscape"], trial["optimizer"]) == pair), key=lambda trial: trial["score"])
        for pair in pairs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/show"), metavar="DIR", help="default: results/show")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    todo = [(name, o, rounded(s)) for name in LANDSCAPES for o in ("sgd", "adam", "arturo") for s in grid(o)]
    trials = [
        {"landscape": name, "optimizer": optimizer, "settings": settings, "score": round(score(name, optimizer, settings), 4)}
        for name, optimizer, settings in track(todo, "searching")
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "grid.json").write_text("[\n" + ",\n".join(map(json.dumps, trials)) + "\n]\n", encoding="utf-8")
    (arguments.out / "grid.md").write_text(markdown(trials), encoding="utf-8")
    print(markdown(trials))


if __name__ == "__main__":
    main()
