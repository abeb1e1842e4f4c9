"""The curves of a section as figures for papers: PNG and PDF, fonts embedded.

Each figure says what it shows: whether an axis is linear or logarithmic, what the bands are, and where an axis is cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from arturo_lab.references import folder_name
from arturo_lab.report.evidence import Array
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.ranking import CLOCKS, LARGEST_RATIO, Ranking
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.wording import count, protocol_words

Band = tuple[Array, Array, Array]  # a curve: means, lowest, highest
PANEL = (3.5, 2.7)  # inches: one column of most journals
ASIDE = 0.003  # between curves of a profile, so that equal ones stay visible
TRAIN_LOSS = ShownMetric("train_loss", "nats", higher=False)
PANELS = ("result", "train-loss", "time")


def write_figures(sections: Sequence[Section], folder: Path, ranking: Ranking | None = None) -> list[Path]:
    """All panels of each section in one figure and each in a separate one, as PNG and PDF. Returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for stem, section in zip(stems(sections), sections, strict=True):
        if not any(variant.times for variant in section.variants):
            continue  # not one epoch yet
        for name, panels in {"": list(PANELS), **{f"-{panel}": [panel] for panel in PANELS}}.items():
            paths += save(curves_figure(section, panels), folder / f"{stem}{name}")
    if ranking is not None:
        paths += save(profiles_figure(ranking), folder / "profiles")
    return paths


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "pdf"), dpi: int = 200) -> list[Path]:
    """As PNG and PDF, the same bytes every time. Returns the paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # letters stay letters
        for path in paths:
            figure.savefig(path, dpi=dpi, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return paths


def stems(sections: Sequence[Section]) -> list[str]:
    """A file name for each section: its task, and a number where a task has several protocols."""
    return file_names([section.task for section in sections])


def file_names(tasks: Sequence[str]) -> list[str]:
    """Of each task that of its run folders, with a number where several have the same.

    A name from a config must not lead out of the folder: what is not a letter, digit, dot or dash becomes a dash.

    Example:
        >>> file_names(["digits-mlp", "/mine/sine.py:TASK", "../sine.py:TASK", "../../etc"])
        ['digits-mlp', 'sine.TASK-1', 'sine.TASK-2', 'etc']
    """
    names = [re.sub(r"[^\w.-]+", "-", folder_name(task)).strip(".-") or "task" for task in tasks]
    return [name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def curves_figure(section: Section, panels: Sequence[str]) -> Figure:
    """Side by side, with one legend below."""
    figure, all_axes = grid(1, len(panels))
    for axes, panel in zip(all_axes, panels, strict=True):
        train_loss = replace(TRAIN_LOSS, unit=section.loss_unit)
        metric = train_loss if panel == "train-loss" else section.on_curves(section.metric)
        draw_curves(axes, section.variants, metric, over_time=panel == "time")
        axes.set_xlabel("seconds of training" if panel == "time" else "epoch", fontsize=8)
    if len(panels) > 1:
        figure.suptitle(f"{section.title}: {protocol_words(section.protocol)}", fontsize=10)
    add_legend(figure, all_axes, len(panels), bands_words(section.variants))
    return figure


def bands_words(variants: Sequence[Variant]) -> str:
    """What lines and bands are."""
    seeds = {len(variant.drawn) for variant in variants if variant.drawn}
    if seeds <= {1}:
        return "One seed each: no bands."
    how_many = count(max(seeds), "seed") if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} seeds"
    return f"Lines: means over {how_many}. Bands: from the lowest to the highest seed."


def grid(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """An empty figure with room for a legend below, and its panels row by row."""
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: no window, no global state
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def add_legend(figure: Figure, all_axes: Sequence[Axes], columns: int, note: str = "") -> None:
    """One for all panels, each label once, as many beside each other as the width of ``columns`` panels has room for."""
    entries: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    beside = max(1, min(len(entries), int(60 * columns / (max(map(len, entries)) + 9))))  # letters, with a line before each
    look = {"frameon": False, "fontsize": 8, "handlelength": 4.5, "columnspacing": 1.2}
    legend = figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=beside,
        title=wrapped(note, int(66 * columns)) or None,  # letters of a line
        title_fontsize=7,
        **look,
    )
    legend.get_title().set(color="0.35", multialignment="center")


def wrapped(text: str, letters: int) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def draw_curves(axes: Axes, variants: Sequence[Variant], metric: ShownMetric, over_time: bool, title: bool = True) -> None:
    """Means as lines, from the lowest to the highest seed as bands. A variant keeps its colour from figure to figure."""
    shown: list[Band] = []
    for variant in variants:
        curve = variant.curve(metric.name)
        if not curve:
            continue
        x = np.array(variant.times if over_time else range(1, len(curve) + 1), dtype=float)
        mean, low, high = (
            np.array([np.nan if point is None else point[i] for point in curve], dtype=np.float64) for i in range(3)
        )
        look = variant.look
        marker = "o" if len(curve) == 1 else look.marker or None  # a single epoch is no line
        axes.plot(
            x, mean, color=look.light, linestyle=look.linestyle, linewidth=1.5, marker=marker, markersize=4,
            markevery=max(1, len(curve) // 6), label=variant.label,
        )  # fmt: skip
        if len(variant.drawn) > 1:
            axes.fill_between(x, low, high, color=look.light, alpha=0.15, linewidth=0)
        shown.append((mean, low, high))
    scale = set_scale(axes, shown, metric)
    lost = [(variant, variant.with_status("diverged")) for variant in variants]
    if words := "\n".join(f"{variant.label}: {len(runs)} of {len(variant.runs)} diverged" for variant, runs in lost if runs):
        top = metric.higher  # where curves that get better leave room
        axes.text(0.02, 0.97 if top else 0.03, words, transform=axes.transAxes, ha="left", va="top" if top else "bottom",
                  fontsize=6.5, color="0.35")  # fmt: skip
    if title:
        axes.set_title(f"{metric.heading}, {scale} scale", loc="left", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=not over_time, steps=[1, 2, 5, 10]))
    finish(axes)


def finish(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def set_scale(axes: Axes, shown: Sequence[Band], metric: ShownMetric) -> str:
    """Logarithmic for numbers that are better when lower and span a factor of 3; else linear, near to where the curves end."""
    values = np.concatenate([mean for mean, _, _ in shown]) if shown else np.array([])
    values = values[np.isfinite(values)]
    if not metric.higher and len(values) and values.min() > 0 and values.max() > 3 * values.min():
        axes.set_yscale("log")
        log_ticks(axes.yaxis, float(values.min()), float(values.max()))
        return "log"
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{metric.scale * value:g}"))
    if len(values):
        low, high = limits(shown, metric.higher)
        axes.set_ylim(low, high)
        if (cut := values.min() < low) or values.max() > high:
            edge, where = (low, "below") if cut else (high, "above")
            text = f"cut: the first epochs are {where} {metric.with_unit(edge)}"
            axes.text(0.98, 0.03 if cut else 0.97, text, transform=axes.transAxes, ha="right", va="bottom" if cut else "top",
                      fontsize=6.5, color="0.35")  # fmt: skip
    return "linear"


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Round numbers, few enough that their labels do not touch: 1, 2, 5 over two decades, powers of ten beyond."""
    decades = np.log10(high / low)
    if decades > 2.2:
        axis.set_major_locator(LogLocator(numticks=6))
    else:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades > 0.6 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def limits(shown: Sequence[Band], higher: bool = True) -> tuple[float, float]:
    """Where the optimizers can be told apart: the first fifth of the training may leave the axis on its worse side."""
    late = np.concatenate([ends[len(ends) // 5 :] for band in shown for ends in band]) if shown else np.array([])
    every = np.concatenate([mean for mean, _, _ in shown]) if shown else np.array([])
    late, every = late[np.isfinite(late)], every[np.isfinite(every)]
    if not len(late):
        return 0.0, 1.0
    low, high = float(late.min()), float(late.max())
    margin = max(0.06 * (high - low), 1e-3 * max(abs(low), abs(high)), 1e-12)
    low, high = low - margin, high + margin
    if higher:  # a network that starts well and then overfits
        high = max(high, float(every.max()) + margin)
    else:
        low = min(low, float(every.min()) - margin)
    # No cut for a little: what lies just outside is shown.
    if higher and every.min() > low - 0.15 * (high - low):
        low = min(low, float(every.min()) - margin)
    if not higher and every.max() < high + 0.15 * (high - low):
        high = max(high, float(every.max()) + margin)
    return low, high


def profiles_figure(ranking: Ranking, drawn: Collection[str] = ()) -> Figure:
    """Two panels: the profiles of time and of steps. ``drawn``: the optimizers that are, if not all."""
    standings = [each for each in ranking.standings if not drawn or each.variants[0].optimizer in drawn]
    figure, all_axes = grid(1, len(CLOCKS))
    for axes, clock in zip(all_axes, CLOCKS, strict=True):
        for i, standing in enumerate(standings):
            ratios = [r for r in standing.profiles[clock].ratios if r <= LARGEST_RATIO]
            x = [1.0, *ratios, LARGEST_RATIO]
            aside = ASIDE * (i - (len(standings) - 1) / 2)
            share = [standing.profiles[clock].share(tau) + aside for tau in x]
            look = standing.look
            axes.step(x, share, where="post", color=look.light, linestyle=look.linestyle, linewidth=1.6,
                      marker=look.marker or None, markersize=4, label=standing.label)  # fmt: skip
        axes.set_title(f"share of tasks [%], {'time' if clock == 'seconds' else 'steps'} to target", loc="left", fontsize=9)
        axes.set_xlabel("τ: times the fastest's, log scale", fontsize=8)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 4]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        finish(axes)
    note = (
        f"{len(ranking.sections)} tasks; medians over the seeds; curves are drawn {100 * ASIDE:g} points apart. A target that "
        "half of the runs or more do not reach counts as never reached."
    )
    add_legend(figure, all_axes, len(CLOCKS), note)
    return figure
