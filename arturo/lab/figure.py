"""The learning curves of a comparison."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from arturo.lab.compare import Comparison
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.palette import style
from arturo.lab.tasks import TASKS


def figure(comparison: Comparison) -> Figure:
    """Test accuracy and train loss over the epochs; bands are the doubled standard error."""
    result = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(result)  # no pyplot: no window, no global state
    left, right = result.subplots(1, 2)
    draw(left, comparison, "test_accuracy")
    draw(right, comparison, "train_loss")

    left.set_title("test accuracy [%]", loc="left", fontsize=10)
    left.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
    left.set_ylim(*accuracy_limits(comparison))
    right.set_title("train loss [nats]", loc="left", fontsize=10)
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
    result.suptitle(f"{TASKS[comparison.task].title}: {comparison.basis}", fontsize=11)
    columns = min(len(comparison.optimizers), 6)
    result.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
    return result


def draw(axes: Axes, comparison: Comparison, metric: str) -> None:
    """One line with its band per optimizer. An optimizer keeps its colour from figure to figure."""
    for name in comparison.optimizers:
        look = style(name)
        curve = comparison.curve(name, metric)
        epochs = np.arange(1, len(curve) + 1)
        mean = np.array([estimate.mean for estimate in curve])
        marker = "o" if len(curve) == 1 else None  # a single epoch is no line
        label = OPTIMIZERS[name].label
        axes.plot(epochs, mean, color=look.light, linestyle=look.linestyle, linewidth=1.8, marker=marker, label=label)
        if comparison.seeds > 1:
            error = np.array([estimate.doubled_error for estimate in curve], dtype=float)
            # A loss cannot be below zero, and its axis is logarithmic: half the mean is as low as a band is drawn.
            lower = np.maximum(mean - error, mean / 2)
            axes.fill_between(epochs, lower, mean + error, color=look.light, alpha=0.14, linewidth=0)


def accuracy_limits(comparison: Comparison) -> tuple[float, float]:
    """Where the optimizers can be told apart: the first fifth of the training may fall below the axis."""
    curves = [[point.mean for point in comparison.curve(name, "test_accuracy")] for name in comparison.optimizers]
    low = min(min(curve[len(curve) // 5 :]) for curve in curves)
    high = max(max(curve) for curve in curves)
    margin = max(0.15 * (high - low), 0.005)
    return max(low - margin, 0), min(high + margin, 1)
