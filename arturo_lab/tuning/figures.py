"""The figures of a search: history, parallel coordinates, importances, and what k trials were worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.palette import style
from arturo_lab.tasks.metrics import ACCURACY, Metric
from arturo_lab.tuning.outcome import TrialRow, best_after, best_so_far
from arturo_lab.tuning.spaces import Space


def write_figures(
    folder: Path,
    optimizer: str,
    title: str,
    rows: Sequence[TrialRow],
    space: Space,
    importances: Mapping[str, float],
    metric: Metric = ACCURACY,
) -> list[Path]:
    """All four as PNG; their paths. Those with nothing to show are left out."""
    own = [row for row in rows if not row.crossed]
    figures = {
        "history": history(optimizer, own, metric),
        "best-after-k": best_after_k({optimizer: own}, metric),
        "parallel": parallel(optimizer, own, space, metric),
    }
    if importances:
        figures["importances"] = bars(optimizer, importances)
    paths = []
    for name, figure in figures.items():
        figure.suptitle(title, fontsize=10)
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def history(optimizer: str, rows: Sequence[TrialRow], metric: Metric = ACCURACY) -> Figure:
    """Every trial in its order, and the best so far of each study."""
    figure, axes = canvas()
    colour = style(optimizer).light
    low, high = limits(rows, metric)
    studies = by_study(rows)
    marks = {"complete": ("o", colour, colour), "pruned": ("o", "none", colour), "diverged": ("X", "0.4", "none")}
    for state, (marker, face, edge) in marks.items():
        points = [(i + 1, max(row.score, low)) for own in studies for i, row in enumerate(own) if row.state == state]
        if points:
            x, y = zip(*points, strict=True)
            below = sum(row.score < low for row in rows if row.state == state)
            label = f"{state} ({len(points)}" + (f", {below} below the axis)" if below else ")")
            axes.scatter(x, y, s=18, c=face, marker=marker, edgecolors=edge, linewidths=1, label=label, clip_on=False, zorder=3)
    for i, own in enumerate(studies):
        best = best_so_far(own)
        name = "best so far" if i == 0 else None
        axes.step(range(1, len(best) + 1), best, where="post", color="0.35", linewidth=1.2, label=name)
    first = [row for row in studies[0] if row.quasi_random] if studies else []
    if first:
        axes.axvspan(0.5, len(first) + 0.5, color="0.95", zorder=0, label="quasi-random")
    finish(axes, "trial", (low, high), metric)
    return figure


def best_after_k(rows: Mapping[str, Sequence[TrialRow]], metric: Metric = ACCURACY) -> Figure:
    """By optimizer: mean and 95 % band of the best of k trials over bootstrap samples; thin, the best so far as it came."""
    figure, axes = canvas()
    shown = []
    for optimizer, own in rows.items():
        if not own:
            continue
        look = style(optimizer)
        per_study = by_study(own)
        trials = max(map(len, per_study))
        mean, lower, upper = (values[:trials] for values in best_after(own))
        k = np.arange(1, trials + 1)
        label = OPTIMIZERS[optimizer].label
        axes.plot(k, mean, color=look.light, linestyle=look.linestyle, linewidth=1.8, label=label)
        axes.fill_between(k, lower, upper, color=look.light, alpha=0.14, linewidth=0)
        for study in per_study:
            best = best_so_far(study)
            axes.step(range(1, len(best) + 1), best, where="post", color=look.light, linewidth=0.7, alpha=0.8)
        shown.append((float(mean[min(4, trials - 1)]), max(row.score for row in own)))  # the first few may fall below the axis
    low = min((first for first, _ in shown), default=0.0)
    high = max((best for _, best in shown), default=1.0)
    margin = max(0.08 * (high - low), 0.002)
    finish(axes, "trials", possible(low - margin, high + margin, metric), metric)
    return figure


def parallel(optimizer: str, rows: Sequence[TrialRow], space: Space, metric: Metric = ACCURACY) -> Figure:
    """A line for each trial through its values, the darker the better; the best on top."""
    figure, axes = canvas(width=1.6 * len(space.dimensions) + 2.6)
    shades = LinearSegmentedColormap.from_list("score", ["0.88", style(optimizer).light])
    low, high = limits(rows, metric)
    for row in sorted(rows, key=lambda row: row.score):
        height = min(max((row.score - low) / (high - low), 0.0), 1.0)
        shares = [d.share(row.params[d.name]) for d in space.dimensions]
        axes.plot(range(len(shares) + 1), [*shares, height], color=shades(height), linewidth=1 + height, clip_on=False)
    for i, dimension in enumerate(space.dimensions):
        axes.axvline(i, color="0.3", linewidth=0.8)
        for share in (0.0, 0.5, 1.0):
            axes.text(i - 0.03, share, f"{dimension.at(share):.2g}", ha="right", va="center", fontsize=7, color="0.25")
    last = len(space.dimensions)
    axes.axvline(last, color="0.3", linewidth=0.8)
    for share in (0.0, 0.5, 1.0):
        value = f"{metric.of_score(low + share * (high - low)):.3g}"
        text = value if share else f"{'≤' if metric.better == 'higher' else '≥'} {value}"
        axes.text(last + 0.03, share, text, ha="left", va="center", fontsize=7, color="0.25")
    axes.set_xticks(range(last + 1), [*(d.name for d in space.dimensions), f"validation\n{metric.heading}"], fontsize=8)
    axes.set_yticks([])
    axes.set_xlim(-0.35, last + 0.35)
    axes.set_ylim(-0.02, 1.02)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure


def bars(optimizer: str, importances: Mapping[str, float]) -> Figure:
    """The share of the variance that each dimension explains."""
    figure, axes = canvas(height=1.3 + 0.35 * len(importances))
    names = list(importances)[::-1]
    drawn = axes.barh(names, [100 * importances[name] for name in names], color=style(optimizer).light, height=0.6)
    axes.bar_label(drawn, fmt="%.0f", padding=3, fontsize=8)
    axes.set_xlabel("share of the scores' variance [%], fANOVA", fontsize=8)
    axes.set_xlim(0, 105)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def canvas(width: float = 5.2, height: float = 3.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: no window, no global state
    return figure, figure.subplots()


def finish(axes: Axes, x: str, y: tuple[float, float], metric: Metric = ACCURACY, legend: bool = True) -> None:
    axes.set_title(f"validation {metric.heading}", loc="left", fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylim(*y)
    axes.set_xlim(left=0.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda score, _: f"{metric.of_score(score):g}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    if not legend:
        return
    handles, labels = axes.get_legend_handles_labels()
    look = {"frameon": False, "fontsize": 7, "handlelength": 3, "columnspacing": 1.2}
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(handles, labels, loc="outside lower center", ncols=4 if sum(map(len, labels)) < 40 else 2, **look)


def by_study(rows: Sequence[TrialRow]) -> list[list[TrialRow]]:
    studies = sorted({row.study for row in rows})
    return [[row for row in rows if row.study == study] for study in studies]


def limits(rows: Sequence[TrialRow], metric: Metric = ACCURACY) -> tuple[float, float]:
    """Where good trials can be told apart: the better half, with as much again below it."""
    scores = sorted(row.score for row in rows)
    if not scores:
        return 0.0, 1.0
    high, middle = scores[-1], scores[len(scores) // 2]
    margin = max(high - middle, 0.01 if metric.percent else 0.01 * abs(high))
    return possible(middle - margin, high + 0.1 * margin, metric)


def possible(low: float, high: float, metric: Metric) -> tuple[float, float]:
    """The same, within the range of the metric."""
    return (max(low, 0.0), min(high, 1.0)) if metric.percent else (low, high)
