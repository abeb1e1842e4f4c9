"""fig:results, fig:add_test_acc, fig:train_loss: a metric over the epochs, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from matplotlib.figure import Figure

from arturo_lab.paper.content import Content
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.plots import add_legend, bands_words, draw_curves, grid
from arturo_lab.report.sections import Point, Section, Variant
from arturo_lab.report.table import Cell, Column, Row, Table, words
from arturo_lab.report.wording import protocol_words
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.schedules import MILESTONES, milestones

AT = (0.25, 0.5, 0.75, 1.0)  # shares of the training that the table shows: before and after the milestones


def curves(metric: ShownMetric) -> Callable[..., Content]:
    """What makes the artefact of a metric."""

    def make(sections: Sequence[Section], against: str | None = None) -> Content:
        columns = (
            Column("task", align="left"),
            Column("optimizer", key="label", align="left"),
            *(Column(f"after {100 * share:g} %", key=f"after_{100 * share:g}_percent", better=better) for share in AT),
            Column("runs"),
        )
        rows: list[Row] = []
        for section in sections:
            for variant in section.variants:
                points = variant.curve(metric.name)
                shares = [at_share(points, share, section.protocol["epochs"]) for share in AT]
                name = Cell(variant.label, variant.label, fields=curve_fields(variant, metric, points))
                runs = Cell(str(len(variant.drawn)), len(variant.drawn))
                rows.append((words(section.task), name, *(point_cell(point, metric) for point in shares), runs))
        title = metric.heading[0].upper() + metric.heading[1:]
        note = f"{title}: mean over the seeds, in brackets the lowest and the highest. The figure and the JSON have all epochs."
        return Content(Table(metric.name, title, columns, tuple(rows), (note,)), (), figure(sections, metric))

    better: Literal["higher", "lower"] = "higher" if metric.higher else "lower"
    return make


def point_cell(point: Point | None, metric: ShownMetric) -> Cell:
    if point is None:
        return Cell("-")
    spread = "" if point.low == point.high else f"{metric.text(point.low)} to {metric.text(point.high)}"
    return Cell(metric.text(point.mean), point.mean, spread)


def at_share(points: Sequence[Point | None], share: float, epochs: int) -> Point | None:
    """The value at the end of the epoch that completes a share of the training.

    Example:
        >>> points = [Point(float(epoch), 0.0, 9.0) for epoch in range(1, 9)]
        >>> [at_share(points, share, 8).mean for share in (0.1, 0.25, 1.0)], at_share(points[:2], 0.5, 8)
        ([1.0, 2.0, 8.0], None)
    """
    index = math.ceil(share * epochs) - 1
    return points[index] if index < len(points) else None


def curve_fields(variant: Variant, metric: ShownMetric, points: Sequence[Point | None]) -> dict[str, object]:
    """The whole curve, for the JSON."""
    ends = {key: [None if point is None else getattr(point, key) for point in points] for key in ("mean", "low", "high")}
    return {"optimizer": variant.optimizer, "metric": metric.name, **ends}


def figure(sections: Sequence[Section], metric: ShownMetric) -> Figure | None:
    """Two panels beside each other, as in the paper. Grey lines are the milestones of the schedule."""
    drawn = [section for section in sections if any(variant.times for variant in section.variants)]
    if not drawn:
        return None
    columns = min(len(drawn), 2)
    result, panels = grid(math.ceil(len(drawn) / columns), columns)
    for axes, section in zip(panels, drawn, strict=False):
        draw_curves(axes, section.variants, metric, over_time=False, title=False)
        axes.set_title(f"{section.title}\n{protocol_words(section.protocol)}", loc="left", fontsize=8)
        axes.set_xlabel("epoch", fontsize=8)
        axes.set_ylabel(f"{metric.heading}, {axes.get_yscale()} scale", fontsize=8)
        if section.task in TASKS and TASKS[section.task].schedule is milestones:
            for share in MILESTONES:
                axes.axvline(share * section.protocol["epochs"] + 0.5, color="0.8", linewidth=0.8, zorder=0)
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    shown = [variant for section in drawn for variant in section.variants]
    add_legend(result, panels, columns, f"{bands_words(shown)} Grey lines: the learning rate falls.")
    return result
