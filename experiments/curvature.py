"""Is the filter's slope a the curvature? Its correlation with the Gauss-Newton diagonal on the Fashion-MNIST CNN.

    python experiments/curvature.py             # a few minutes on one core; writes results/curvature.md, .json and .png

Trains with arTuRO as in any other run, then compares a, weight by weight, with the exact diagonal over some training images.
The same diagonal over two halves of these images is the yardstick: no estimate can agree with it better than it does with
itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.progress import track
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from arturo import Arturo, ggn_diagonal
from arturo_lab.data import loading
from arturo_lab.optimizers import tuned
from arturo_lab.tasks.models import fashion_mnist_cnn

SETTINGS: dict[str, dict[str, Any]] = {"defaults": {}, "the paper's values": dict(tuned.ARTURO["fmnist-cnn"])}


def trained(settings: dict[str, Any], images: Tensor, labels: Tensor, epochs: int, batch: int) -> tuple[nn.Module, Arturo]:
    """A run with lr falling linearly to 0."""
    torch.manual_seed(0)
    model = fashion_mnist_cnn()
    optimizer = Arturo(model.parameters(), **{"initial_curvature": 0.1, **settings})
    batches = [part for _ in range(epochs) for part in torch.randperm(len(labels)).split(batch)]
    for i, chosen in enumerate(track(batches, "training")):
        optimizer.param_groups[0]["lr"] = 1 - i / len(batches)
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model, optimizer


def compared(
    model: nn.Module, optimizer: Arturo, images: Tensor, labels: Tensor
) -> tuple[list[dict[str, Any]], Tensor, Tensor]:
    """A row for each parameter and one for all; and all of a and of the diagonal."""
    half = len(labels) // 2
    halves = [ggn_diagonal(model, (images[part], labels[part])) for part in (slice(half), slice(half, 2 * half))]
    named = dict(model.named_parameters())
    columns = {name: [optimizer.state[p]["a"], optimizer.state[p]["P_aa"]] for name, p in named.items()}
    for name in named:
        columns[name] += [one[name] for one in halves]
    every = [torch.cat([column[i].flatten() for column in columns.values()]) for i in range(4)]
    rows = [row(name, *(t.flatten() for t in column)) for name, column in columns.items()] + [row("all", *every)]
    return rows, every[0], (every[2] + every[3]) / 2


def row(name: str, a: Tensor, P_aa: Tensor, first: Tensor, second: Tensor) -> dict[str, Any]:
    ggn = (first + second) / 2
    alive = ggn > 0
    return {
        "parameter": name,
        "weights": len(a),
        "alive": int(alive.sum()),
        "pearson": float(stats.pearsonr(a, ggn).statistic),
        "spearman": float(stats.spearmanr(a, ggn).statistic),
        "halves_pearson": float(stats.pearsonr(first, second).statistic),
        "halves_spearman": float(stats.spearmanr(first, second).statistic),
        "a": torch.quantile(a[:: max(1, len(a) // 100_000)], torch.tensor([0.01, 0.5, 0.99])).tolist(),
        "ggn": torch.quantile(ggn[:: max(1, len(a) // 100_000)], torch.tensor([0.01, 0.5, 0.99])).tolist(),
        "sd_of_a": P_aa.median().sqrt().item(),
    }


def markdown(runs: dict[str, list[dict[str, Any]]], command: str, about: str) -> str:
    lines = ["# The filter's slope and the Gauss-Newton diagonal", "", "```", command, "```", "", about, ""]
    for title, rows in runs.items():
        lines += [
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| parameter | weights | Pearson | Spearman | halves, Pearson | halves, Spearman | a: 1 %, median, 99 % "
            "| filter's own sd of a | diagonal: 1 %, median, 99 % |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for r in rows:
            a, ggn = (", ".join(f"{x:.2g}" for x in r[key]) for key in ("a", "ggn"))
            numbers = " | ".join(f"{r[key]:.2f}" for key in ("pearson", "spearman", "halves_pearson", "halves_spearman"))
            lines.append(f"| {r['parameter']} | {r['weights']:,} | {numbers} | {a} | {r['sd_of_a']:.2g} | {ggn} |")
        lines.append("")
    return "\n".join(lines)


def figure(clouds: dict[str, tuple[Tensor, Tensor]], path: Path) -> None:
    picture = Figure(figsize=(4.2 * len(clouds), 3.6), layout="constrained")
    FigureCanvasAgg(picture)
    for axes, (title, (a, ggn)) in zip(picture.subplots(1, len(clouds), squeeze=False)[0], clouds.items(), strict=True):
        alive = ggn > 1e-12
        axes.hexbin(ggn[alive].log10(), a[alive], gridsize=60, bins="log", cmap="viridis", mincnt=1, linewidths=0.1)
        axes.axhline(0.1, color="0.4", linewidth=0.8, linestyle="--")
        axes.set(xlabel="log10 of the Gauss-Newton diagonal", ylabel="the filter's a (dashed: where it began)", title=title)
    picture.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5500, help="training images (default: 5500)")
    parser.add_argument("--epochs", type=int, default=4, help="default: 4")
    parser.add_argument("--batch", type=int, default=100, help="default: 100")
    parser.add_argument("--examples", type=int, default=400, help="images the diagonal is taken over (default: 400)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loaded = loading.load("fashion-mnist").subset(arguments.images)
    images, labels = loaded.train_inputs.float() / 255, loaded.train_targets
    tests, truth = loaded.test_inputs[:2000].float() / 255, loaded.test_targets[:2000]
    runs, clouds, accuracy = {}, {}, {}
    for title, settings in SETTINGS.items():
        model, optimizer = trained(settings, images, labels, arguments.epochs, arguments.batch)
        runs[title], *clouds[title] = compared(model, optimizer, images[: arguments.examples], labels[: arguments.examples])
        with torch.no_grad():
            accuracy[title] = (model.eval()(tests).argmax(1) == truth).double().mean().item()
    command = " ".join(["python", "experiments/curvature.py", *sys.argv[1:]])
    about = (
        f"Fashion-MNIST CNN, {arguments.images:,} images, {arguments.epochs} epochs, batches of {arguments.batch}, lr falling "
        "linearly to 0, seed 0; "
        f"the diagonal over {arguments.examples} training images. Accuracy on the first 2,000 test images: "
        + ", ".join(f"{100 * value:.1f} % ({title})" for title, value in accuracy.items())
        + ". `halves`: the diagonal over one half of these images against that over the other."
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "curvature.md").write_text(markdown(runs, command, about), encoding="utf-8")
    content = {"command": command, "test_accuracy": accuracy, "runs": runs}
    (arguments.out / "curvature.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    figure(clouds, arguments.out / "curvature.png")


if __name__ == "__main__":
    main()
