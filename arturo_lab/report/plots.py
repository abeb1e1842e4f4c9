"""The curves of a section as figures for papers: PNG and PDF, fonts embedded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from arturo_lab.report.evidence import Array
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.wording import protocol_words

PANEL = (3.5, 2.7)  # inches: one column of most journals
# Name of the figure -> metric, whether over time, title.
PANELS: dict[str, tuple[str, bool, str]] = {
    "accuracy": ("test_accuracy", False, "test accuracy [%]"),
    "train-loss": ("train_loss", False, "train loss [nats]"),
    "time": ("test_accuracy", True, "test accuracy [%]"),
}


def write_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """All panels of each section in one figure and each in its own, as PNG and PDF. Returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for stem, section in zip(stems(sections), sections, strict=True):
        if not any(variant.times for variant in section.variants):
            continue  # not one epoch yet
        for name, panels in {"": list(PANELS), **{f"-{panel}": [panel] for panel in PANELS}}.items():
            paths += save(curves_figure(section, panels), folder / f"{stem}{name}")
    return paths


def save(figure: Figure, stem: Path) -> list[Path]:
    """As PNG and PDF, the same bytes every time. Returns the paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")]
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # letters stay letters
        for path in paths:
            figure.savefig(path, dpi=200, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return paths


def stems(sections: Sequence[Section]) -> list[str]:
    """A file name for each section: its task, and a number where a task has several protocols.

    A name from a config must not lead out of the folder: what is not a letter, digit, dot or dash becomes a dash.
    """
    names = [re.sub(r"[^\w.-]+", "-", section.task).strip(".-") or "task" for section in sections]
    return [name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def curves_figure(section: Section, panels: Sequence[str]) -> Figure:
    """Side by side, with one legend below."""
    figure, all_axes = grid(1, len(panels))
    for axes, panel in zip(all_axes, panels, strict=True):
        metric, over_time, title = PANELS[panel]
        draw_curves(axes, section.variants, metric, over_time)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel("seconds of training" if over_time else "epoch", fontsize=8)
    if len(panels) > 1:
        figure.suptitle(f"{section.title}: {protocol_words(section.protocol)}", fontsize=10)
    add_legend(figure, all_axes, len(panels))
    return figure


def grid(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """An empty figure with room for a legend below, and its panels row by row."""
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: no window, no global state
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def add_legend(figure: Figure, all_axes: Sequence[Axes], columns: int) -> None:
    """One for all panels, each label once, as many beside each other as the width of ``columns`` panels has room for."""
    entries: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    beside = max(1, min(len(entries), int(60 * columns / (max(map(len, entries)) + 9))))  # letters, with a line before each
    look = {"frameon": False, "fontsize": 8, "handlelength": 3, "columnspacing": 1.2}
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=beside, **look)


def draw_curves(axes: Axes, variants: Sequence[Variant], metric: str, over_time: bool) -> None:
    """Means as lines, the doubled standard error as bands. A variant keeps its colour from figure to figure."""
    shown: list[tuple[Array, Array]] = []
    for variant in variants:
        curve = variant.curve(metric)
        if not curve:
            continue
        x = np.array(variant.times if over_time else range(1, len(curve) + 1), dtype=float)
        mean = np.array([np.nan if point is None else point.mean for point in curve])
        error = np.array([np.nan if point is None or point.doubled_error is None else point.doubled_error for point in curve])
        look = variant.look
        marker = "o" if len(curve) == 1 else None  # a single epoch is no line
        axes.plot(x, mean, color=look.light, linestyle=look.linestyle, linewidth=1.5, marker=marker, label=variant.label)
        if metric == "train_loss":  # a loss cannot be below zero, and its axis is logarithmic
            lower = np.maximum(mean - error, mean / 2)
        else:
            lower = mean - error
        axes.fill_between(x, lower, mean + error, color=look.light, alpha=0.15, linewidth=0)
        shown.append((mean, np.nan_to_num(error)))
    if metric == "test_accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axes.set_ylim(*limits(shown))
    elif any(np.nanmax(mean, initial=0) > 0 for mean, _ in shown):
        positive = np.concatenate([mean[mean > 0] for mean, _ in shown])
        if positive.max() > 3 * positive.min():  # on less of a log axis no round number has a place
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=not over_time, steps=[1, 2, 5, 10]))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def limits(shown: Sequence[tuple[Array, Array]]) -> tuple[float, float]:
    """Where the optimizers can be told apart: the first fifth of the training may fall below the axis."""
    late = [(mean[len(mean) // 5 :], error[len(mean) // 5 :]) for mean, error in shown]
    low = min((float(np.nanmin(m - e)) for m, e in late if np.isfinite(m).any()), default=0.0)
    high = max((float(np.nanmax(m + e)) for m, e in late if np.isfinite(m).any()), default=1.0)
    margin = max(0.06 * (high - low), 0.002)
    return max(low - margin, 0.0), min(high + margin, 1.0 + margin)
