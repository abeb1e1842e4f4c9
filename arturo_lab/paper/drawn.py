"""The paper's figures that need no training: the trust region, the networks, the graphical model."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor, nn

from arturo_lab.paper import published
from arturo_lab.paper.content import Content
from arturo_lab.report.table import Cell, Column, Row, Table, number, words
from arturo_lab.tasks.catalog import TASKS

DRAWN = ("cifar10-cnn", "fmnist-cnn")  # as in the paper, left and right
COLOURS = {"Conv2d": "#CFE3F2", "Linear": "#FBE3C4", "MaxPool2d": "#DDEFE6", "Dropout": "#F2F2F2", "ReLU": "#FFFFFF"}
INPUTS = {"fmnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
FORMULAS = (
    "The surrogate's parameters drift as a Gaussian random walk, and each gradient is a noisy look at them:",
    "w_t = (a_t, b_t),  w_t ~ N(w_{t−1}, q I),  g_t ~ N(a_t μ_t + b_t, r).",
    "The filter's mean gives the quadratic model ½ a_t θ² + b_t θ of the loss in each weight (docs/derivation.md).",
)


def trust_region() -> Content:
    """One telling step on each landscape; the numbers of the race that it belongs to."""
    from arturo_lab.show.landscapes import LANDSCAPES
    from arturo_lab.show.show import race, table
    from arturo_lab.show.step_figure import step_figure

    ways = race(list(LANDSCAPES))
    figure = step_figure({name: racers["arturo"] for name, racers in ways.items()})
    before = ("`arturo show trust-region` makes the same figure at any step, an animation, and a page to step through.",)
    return Content(table(ways), (), figure, before)


def architectures() -> Content:
    """Layer by layer, from the networks that are trained."""
    columns = (
        Column("task", align="left"),
        Column("layer", align="left"),
        Column("output", align="left"),
        Column("weights"),
    )
    rows: list[Row] = []
    totals = []
    for task in published.TASKS:
        layers = layers_of(task)
        totals.append(f"{TASKS[task].title} {sum(weights for _, _, weights in layers):,}")
        if task.endswith("cnn") and task != "cifar100-cnn":
            rows += [
                (words(task), words(layer), Cell(" × ".join(map(str, shape))), number(weights, f"{weights:,}"))
                for layer, shape, weights in layers
            ]
    notes = (
        f"Weights: {'; '.join(totals)}. The CNN of CIFAR-100 is that of CIFAR-10 with 100 outputs; the ResNets are "
        "torchvision's layout, for Fashion-MNIST with one input channel (arturo_lab/tasks/resnet.py).",
    )
    return Content(Table("architectures", "The networks", columns, tuple(rows), notes), (), architectures_figure())


def layers_of(task: str) -> list[tuple[str, tuple[int, ...], int]]:
    """Of each layer its name with its arguments, the shape of what it gives, and its weights; nothing is computed."""
    layers: list[tuple[str, tuple[int, ...], int]] = []

    def remember(module: nn.Module, inputs: Any, output: Tensor) -> None:
        layers.append((layer_name(module), tuple(output.shape[1:]), sum(p.numel() for p in module.parameters())))

    with torch.device("meta"):
        model = TASKS[task].model().eval()
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(remember)
        model(torch.empty(1, *INPUTS[task.partition("-")[0]]))
    return layers


def layer_name(module: nn.Module) -> str:
    """
    Example:
        >>> layer_name(nn.Conv2d(3, 32, 3, padding=1)), layer_name(nn.Linear(4, 2)), layer_name(nn.ReLU())
        ('Conv2d 3x3, padding 1', 'Linear', 'ReLU')
    """
    name = type(module).__name__
    if isinstance(module, nn.Conv2d):
        padding = f", padding {module.padding[0]}" if module.padding[0] else ""
        return f"{name} {module.kernel_size[0]}x{module.kernel_size[1]}{padding}"
    if isinstance(module, nn.MaxPool2d):
        return f"{name} {module.kernel_size}"
    return f"{name} {module.p:g}" if isinstance(module, nn.Dropout) else name


def architectures_figure() -> Figure:
    """The two CNNs side by side, from top to bottom."""
    result = Figure(figsize=(7.0, 6.6), layout="constrained")
    FigureCanvasAgg(result)
    for axes, task in zip(result.subplots(1, len(DRAWN)), DRAWN, strict=True):
        layers = [("input", INPUTS[task.partition("-")[0]], 0), *layers_of(task)]
        axes.set_title(TASKS[task].title, fontsize=10)
        axes.set(xlim=(0, 10), ylim=(-len(layers), 0.2))
        axes.set_axis_off()
        for i, (name, shape, _) in enumerate(layers):
            colour = COLOURS.get(name.split()[0], "#FFFFFF")
            box = FancyBboxPatch(
                (0.6, -i - 0.78), 5.0, 0.62, boxstyle="round,pad=0.04", facecolor=colour, edgecolor="0.3", linewidth=0.8
            )
            axes.add_patch(box)
            axes.text(3.1, -i - 0.48, name, ha="center", va="center", fontsize=7.5)
            axes.text(6.1, -i - 0.48, " × ".join(map(str, shape)), ha="left", va="center", fontsize=7.5, color="0.35")
    return result


def graphical_model() -> Content:
    """The chain of hidden surrogates and observed gradients."""
    columns = (Column("symbol", align="left"), Column("what it is", align="left"), Column("argument", align="left"))
    rows = (
        (words("w_t = (a_t, b_t)"), words("curvature and slope of the surrogate, hidden; one pair for each weight"), words("")),
        (words("g_t"), words("the gradient, observed at the mean μ_t"), words("")),
        (words("q"), words("variance of the random walk"), words("drift")),
        (words("r"), words("variance of the gradient noise"), words("noise")),
        (words("P_0"), words("variance of w_0"), words("initial_filter_variance")),
    )
    return Content(Table("graphical-model", "Symbols", columns, rows), (), chain_figure(), FORMULAS)


def chain_figure() -> Figure:
    result = Figure(figsize=(5.6, 2.6), layout="constrained")
    FigureCanvasAgg(result)
    axes = result.subplots()
    axes.set(xlim=(-0.6, 4.7), ylim=(-1.65, 0.65), aspect="equal")
    axes.set_axis_off()
    for t in range(4):
        circle(axes, (t * 1.1, 0), f"$w_{t}$", "#E4EEF8")
        circle(axes, (t * 1.1, -1.15), f"$g_{t}$", "#F8E4E4")
        arrow(axes, (t * 1.1, 0), (t * 1.1, -1.15))
        arrow(axes, (t * 1.1, 0), (t * 1.1 + 1.1, 0))
    axes.text(4.4, 0, "...", ha="center", va="center", fontsize=14)
    axes.text(-0.55, 0.52, "hidden: the surrogate; random walk with variance q", fontsize=8, color="0.3")
    axes.text(-0.55, -1.62, "observed: the gradient; noise with variance r", fontsize=8, color="0.3")
    return result


def circle(axes: Axes, at: tuple[float, float], text: str, colour: str) -> None:
    axes.plot(*at, "o", markersize=26, markerfacecolor=colour, markeredgecolor="0.2", markeredgewidth=1.4, zorder=2)
    axes.text(*at, text, ha="center", va="center", fontsize=11, zorder=3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 11,
        "color": "0.2",
        "linewidth": 1.3,
        "shrinkA": 14,
        "shrinkB": 14,
    }
    axes.add_patch(FancyArrowPatch(start, end, zorder=1, **look))
