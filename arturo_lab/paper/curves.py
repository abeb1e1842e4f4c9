"""fig:results, fig:add_test_acc, fig:train_loss: a metric over the epochs, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from arturo_lab.paper.document import Content
from arturo_lab.report.evidence import Estimate
from arturo_lab.report.plots import add_legend, draw_curves, grid
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.wording import mean_with_error, protocol_words
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.schedules import MILESTONES, milestones

AT = (0.25, 0.5, 0.75, 1.0)  # shares of the training that the table shows: before and after the milestones


def curves(metric: str, title: str, scale: float, digits: int) -> Callable[[Sequence[Section]], Content]:
    """What makes the artefact of a metric; the table multiplies it by ``scale``."""

    def make(sections: Sequence[Section]) -> Content:
        rows, data = [], []
        for section in sections:
            for variant in section.variants:
                points = variant.curve(metric)
                values = [at_share(points, share, section.protocol["epochs"]) for share in AT]
                shown = ("-" if value is None else mean_with_error(value, scale, digits) for value in values)
                rows.append((section.task, variant.label, *shown, str(len(variant.drawn))))
                data.append(curve_data(section, variant, metric, points))
        headings = ("task", "optimizer", *(f"after {100 * share:g} %" for share in AT), "runs")
        note = f"{title[0].upper()}{title[1:]}: mean ± doubled standard error. The figure and the JSON have all epochs."
        return Content(headings, rows, data, (note,), figure(sections, metric, title))

    return make


def at_share(points: Sequence[Estimate | None], share: float, epochs: int) -> Estimate | None:
    """The value at the end of the epoch that completes a share of the training.

    Example:
        >>> points = [Estimate(float(epoch), None) for epoch in range(1, 9)]
        >>> [at_share(points, share, 8).mean for share in (0.1, 0.25, 1.0)], at_share(points[:2], 0.5, 8)
        ([1.0, 2.0, 8.0], None)
    """
    index = math.ceil(share * epochs) - 1
    return points[index] if index < len(points) else None


def curve_data(section: Section, variant: Variant, metric: str, points: Sequence[Estimate | None]) -> dict[str, object]:
    return {
        "task": section.task,
        "optimizer": variant.optimizer,
        "metric": metric,
        "runs": len(variant.drawn),
        "mean": [None if point is None else point.mean for point in points],
        "doubled_error": [None if point is None else point.doubled_error for point in points],
    }


def figure(sections: Sequence[Section], metric: str, title: str) -> Figure | None:
    """Two panels beside each other, as in the paper. Grey lines are the milestones of the schedule."""
    drawn = [section for section in sections if any(variant.times for variant in section.variants)]
    if not drawn:
        return None
    columns = min(len(drawn), 2)
    result, panels = grid(math.ceil(len(drawn) / columns), columns)
    for axes, section in zip(panels, drawn, strict=False):
        draw_curves(axes, section.variants, metric, over_time=False)
        axes.set_title(f"{section.title}\n{protocol_words(section.protocol)}", loc="left", fontsize=8)
        axes.set_xlabel("epoch", fontsize=8)
        axes.set_ylabel(title, fontsize=8)
        if TASKS[section.task].schedule is milestones:
            for share in MILESTONES:
                axes.axvline(share * section.protocol["epochs"] + 0.5, color="0.8", linewidth=0.8, zorder=0)
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    add_legend(result, panels, columns)
    return result
