"""Sensitivity to the learning rate: the result of each optimizer over a range of lr, as a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from arturo_lab.errors import ConfigError
from arturo_lab.report.document import Document, Part
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.palette import Style, distinct, style
from arturo_lab.report.plots import PANEL, add_legend, finish, grid, log_ticks, stems
from arturo_lab.report.sections import Section, Variant, labels
from arturo_lab.report.table import Cell, Column, Row, Table, number, with_best, words
from arturo_lab.report.wording import estimate_fields, mean_with_interval, protocol_words, seed_words

NEAR = {"%": 0.01}  # one point of an accuracy
NEAR_SHARE = 0.02  # of any other metric's best value


def parse_range(text: str, points: int | None = None) -> list[float]:
    """``LOW:HIGH`` as learning rates in equal ratios, half a decade apart unless ``points`` says how many.

    Example:
        >>> parse_range("1e-3:1e-1"), parse_range("0.1:0.4", points=3)
        ([0.001, 0.00316, 0.01, 0.0316, 0.1], [0.1, 0.2, 0.4])
        >>> parse_range("0.1")
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: lr: must be LOW:HIGH with 0 < LOW < HIGH, such as 1e-4:1e-1, got '0.1'
    """
    ends = text.split(":")
    try:
        low, high = map(float, ends)
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low < high < math.inf:
        raise ConfigError(f"lr: must be LOW:HIGH with 0 < LOW < HIGH, such as 1e-4:1e-1, got {text!r}")
    count = points or max(2, round(2 * math.log10(high / low)) + 1)
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, count)]


@dataclass(frozen=True)
class Curve:
    """One optimizer: a variant for each lr, in rising order."""

    label: str
    look: Style
    points: tuple[tuple[float, Variant], ...]

    @property
    def best(self) -> tuple[float, Variant] | None:
        known = [point for point in self.points if point[1].values]
        return min(known, key=lambda point: point[1].standing) if known else None

    @property
    def at_edge(self) -> bool:
        """Whether the best lr is the least or the largest tried, so that the true best may lie beyond."""
        return self.best is not None and self.best[0] in (self.points[0][0], self.points[-1][0])

    def range_within(self, worst: float) -> tuple[float, float] | None:
        """The unbroken range of lr around the best one on which the mean is ``worst`` or better and nothing diverged."""
        if self.best is None:
            return None
        good = [variant.estimate is not None and not variant.diverged_share and
                variant.metric.ahead(variant.estimate.mean, worst) >= 0 for _, variant in self.points]  # fmt: skip
        middle = [lr for lr, _ in self.points].index(self.best[0])
        if not good[middle]:
            return None
        low = high = middle
        while low > 0 and good[low - 1]:
            low -= 1
        while high + 1 < len(good) and good[high + 1]:
            high += 1
        return self.points[low][0], self.points[high][0]


def curves(section: Section) -> list[Curve]:
    """By optimizer; what has no lr in its settings is left out."""
    by_optimizer: dict[str, list[tuple[float, Variant]]] = {}
    for variant in section.variants:
        lr = (variant.runs[0].config.get("settings") or {}).get("lr")
        if isinstance(lr, int | float):
            by_optimizer.setdefault(variant.optimizer, []).append((float(lr), variant))
    looks = distinct([style(name) for name in by_optimizer])
    labelled = labels(list(by_optimizer))
    return [
        Curve(labelled[name], look, tuple(sorted(points, key=lambda point: point[0])))
        for (name, points), look in zip(by_optimizer.items(), looks, strict=True)
    ]


def near(best: float, metric: ShownMetric) -> float:
    """The worst value that still counts as close to ``best``."""
    slack = NEAR.get(metric.unit, NEAR_SHARE * abs(best))
    return best - slack if metric.higher else best + slack


def sweep_table(section: Section, lines: Sequence[Curve]) -> Table:
    """A row for each optimizer: its best lr, and how far one may be from it."""
    metric = section.metric
    bests = [curve.best[1].estimate.mean for curve in lines if curve.best and curve.best[1].estimate]
    top = (max if metric.higher else min)(bests) if bests else None
    columns = (
        Column("optimizer", key="label", align="left"),
        Column("best lr", key="best_lr"),
        Column(metric.title, key=metric.name, unit=metric.unit, better="higher" if metric.higher else "lower"),
        Column("lr close to its own best", key="own_range"),
        Column("decades", key="own_decades", better="higher"),
        Column("lr close to the best of all", key="shared_range", secondary=True),
        Column("diverged"),
    )
    rows: list[Row] = []
    for curve in lines:
        name = Cell(
            curve.label, curve.label, look=curve.look, fields={"curve": [point_fields(*point) for point in curve.points]}
        )
        diverged = sum(len(variant.with_status("diverged")) for _, variant in curve.points)
        runs = sum(len(variant.over) for _, variant in curve.points)
        lost = Cell(f"{diverged} of {runs}", diverged)
        if curve.best is None or curve.best[1].estimate is None or top is None:
            rows.append((name, *(words(None) for _ in range(5)), lost))
            continue
        lr, estimate = curve.best[0], curve.best[1].estimate
        own, shared = curve.range_within(near(estimate.mean, metric)), curve.range_within(near(top, metric))
        decades = None if own is None else math.log10(own[1] / own[0])
        edge = "at the end of the range" if curve.at_edge else ""
        rows.append(
            (
                name,
                Cell(f"{lr:g}", lr, edge, fields={"best_at_edge": curve.at_edge}),
                Cell(mean_with_interval(estimate, metric), estimate.mean, fields={f"{metric.name}_n": estimate.n}),
                range_cell(own),
                number(decades, "" if decades is None else f"{decades:.1f}"),
                range_cell(shared),
                lost,
            )
        )
    slack = "one point" if metric.unit == "%" else f"{100 * NEAR_SHARE:g} %"
    notes = (
        f"Close: within {slack} of the best mean, at every lr in between, nothing diverged. The lr that is best here "
        "was chosen on the numbers shown.",
    )
    title = f"{section.title}: {protocol_words(section.protocol)}; {seed_words(section.seeds)}"
    return Table("sweep", title, columns, with_best(columns, rows), notes)


def point_fields(lr: float, variant: Variant) -> dict[str, Any]:
    return {"lr": lr, **estimate_fields(variant.estimate), "diverged": len(variant.with_status("diverged"))}


def range_cell(ends: tuple[float, float] | None) -> Cell:
    if ends is None:
        return Cell("-")
    low, high = ends
    text = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return Cell(text, high / low, fields={})


def figure(section: Section, lines: Sequence[Curve]) -> Figure:
    """The result over lr: means as lines, from the lowest to the highest seed as bands, × where a run diverged."""
    result, (axes,) = grid(1, 1)
    result.set_size_inches(2 * PANEL[0], 4.2)
    metric = section.metric
    values: list[float] = []
    for curve in lines:
        known = [(lr, variant) for lr, variant in curve.points if variant.values]
        x = [lr for lr, _ in known]
        mean = [sum(v.values.values()) / len(v.values) for _, v in known]
        low, high = [min(v.values.values()) for _, v in known], [max(v.values.values()) for _, v in known]
        look = curve.look
        axes.plot(
            x,
            mean,
            color=look.light,
            linestyle=look.linestyle,
            linewidth=1.6,
            marker=look.marker or "o",
            markersize=3.5,
            label=curve.label,
        )
        axes.fill_between(x, low, high, color=look.light, alpha=0.15, linewidth=0)
        values += mean
    axes.set_xscale("log")
    decades = {math.floor(math.log10(lr)) for curve in lines for lr, _ in curve.points}
    axes.xaxis.set_major_locator(LogLocator(numticks=max(4, len(decades) + 1)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    scale = "linear"
    if not metric.higher and values and min(values) > 0 and max(values) > 3 * min(values):
        scale = "log"
        axes.set_yscale("log")
        log_ticks(axes.yaxis, min(values), max(values))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{metric.scale * value:g}"))
        near_the_best(axes, values, metric)
    draw_diverged(axes, lines, metric)
    axes.set_title(f"{metric.heading}, {scale} scale", loc="left", fontsize=9)
    axes.set_xlabel("lr, log scale", fontsize=8)
    result.suptitle(f"{section.title}: {protocol_words(section.protocol)}", fontsize=10)
    finish(axes)
    seeds = max((len(variant.values) for curve in lines for _, variant in curve.points), default=0)
    bands = (
        "One seed: no bands." if seeds < 2 else f"Lines: means over {seeds} seeds. Bands: from the lowest to the highest seed."
    )
    bands += " Grey: close to the best." if scale == "linear" else ""
    crosses = " ×: a run diverged at this lr." if any(v.with_status("diverged") for c in lines for _, v in c.points) else ""
    add_legend(result, [axes], 2, bands + crosses)
    return result


def near_the_best(axes: Axes, values: Sequence[float], metric: ShownMetric) -> None:
    """Cut a linear axis where it would hide who is how close to the best, and shade what counts as close."""
    if not values:
        return
    best, worst = (max(values), min(values)) if metric.higher else (min(values), max(values))
    close = abs(near(best, metric) - best)
    axes.axhspan(best, near(best, metric), color="0.9", zorder=0, linewidth=0)
    shown = 15 * close
    if close > 0 and abs(worst - best) > 1.3 * shown:
        edge, beyond = (best - shown, best + 2 * close) if metric.higher else (best + shown, best - 2 * close)
        axes.set_ylim(min(edge, beyond), max(edge, beyond))
        where = "below" if metric.higher else "above"
        axes.text(0.98, 0.03 if metric.higher else 0.97, f"cut: some are {where} {metric.with_unit(edge)}", fontsize=6.5,
                  transform=axes.transAxes, ha="right", va="bottom" if metric.higher else "top", color="0.35")  # fmt: skip


def draw_diverged(axes: Axes, lines: Sequence[Curve], metric: ShownMetric) -> None:
    """At the worse end of the axis, the curves beside each other."""
    for i, curve in enumerate(lines):
        lost = [lr for lr, variant in curve.points if variant.with_status("diverged")]
        if not lost:
            continue
        height = (0.02 if metric.higher else 0.98) + (0.03 if metric.higher else -0.03) * i
        axes.plot(
            lost,
            [height] * len(lost),
            "x",
            color=curve.look.light,
            markersize=5,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )


def document(sections: Sequence[Section], command: str) -> Document:
    """All tasks of a sweep."""
    parts = []
    names = [f"sweep-{stem}" for stem in stems(sections)]
    for section, name in zip(sections, names, strict=True):
        lines = curves(section)
        heading = section.title if len(sections) > 1 else ""
        parts.append(Part(heading, (), sweep_table(section, lines), (), figure(section, lines), name))
    return Document(names[0] if len(names) == 1 else "sweep", "Sensitivity to the learning rate", command, tuple(parts))
