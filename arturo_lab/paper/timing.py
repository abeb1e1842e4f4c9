"""tab:timing: seconds per training epoch, and what they are against SGD's. Seconds of two machines do not compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from arturo_lab.paper import published
from arturo_lab.paper.document import Content
from arturo_lab.report.palette import style
from arturo_lab.report.plots import grid
from arturo_lab.report.sections import Section, Variant
from arturo_lab.runs.config import RunConfig

YARDSTICK = "sgd"
HEADINGS = ("task", "optimizer", "epoch", "× SGD", "optimizer's step", "paper, epoch", "paper, × SGD")


def timing_table(sections: Sequence[Section]) -> Content:
    """One row per task and optimizer."""
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Any]] = []
    for section in sections:
        ours = {variant.optimizer: median_seconds(variant, "seconds") for variant in section.variants}
        theirs = {name: published.seconds_per_epoch(name, section.task) for name in ours}
        base, paper_base = ours.get(YARDSTICK), published.seconds_per_epoch(YARDSTICK, section.task)
        for variant in section.variants:
            step = seconds_per_step(variant)
            entry = {
                "task": section.task,
                "title": section.title,
                "optimizer": variant.optimizer,
                "label": variant.label,
                "seconds_per_epoch": ours[variant.optimizer],
                "against_sgd": ratio(ours[variant.optimizer], base),
                "optimizer_seconds_per_step": step,
                "paper_seconds_per_epoch": theirs[variant.optimizer],
                "paper_against_sgd": ratio(theirs[variant.optimizer], paper_base),
            }
            data.append(entry)
            rows.append(
                (
                    section.task,
                    variant.label,
                    number(entry["seconds_per_epoch"], "{:.2f} s"),
                    number(entry["against_sgd"], "{:.3f}"),
                    number(None if step is None else 1000 * step, "{:.2f} ms"),
                    number(entry["paper_seconds_per_epoch"], "{:.2f} s"),
                    number(entry["paper_against_sgd"], "{:.3f}"),
                )
            )
    note = (
        "An epoch is the training alone, without the test. The optimizer's step is its share of one training step, the "
        "schedule included; the rest is data, forward and backward pass, the same for every optimizer."
    )
    return Content(HEADINGS, rows, data, (note,), figure(data))


def warm_rows(variant: Variant) -> list[dict[str, float | None]]:
    """The epochs that count: in the first one of a training, memory and kernels are still being set up."""
    return [row for run in variant.runs for row in (run.rows[1:] or run.rows)]


def median_seconds(variant: Variant, key: str) -> float | None:
    values = [value for row in warm_rows(variant) if (value := row.get(key)) is not None]
    return statistics.median(values) if values else None


def seconds_per_step(variant: Variant) -> float | None:
    """Of the optimizer alone."""
    taken = median_seconds(variant, "seconds_optimizer")
    return None if taken is None else taken / RunConfig.from_json(variant.runs[0].config).steps_per_epoch


def ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def number(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)


def figure(data: Sequence[dict[str, Any]]) -> Figure | None:
    """Bars for ours, diamonds for the paper's; SGD is the line at 1."""
    shown = [entry for entry in data if entry["against_sgd"] is not None and entry["optimizer"] != YARDSTICK]
    if not shown:
        return None
    result, (axes,) = grid(1, 1)
    result.set_size_inches(6.5, 1.2 + 0.2 * len(shown) + 0.2 * len({entry["task"] for entry in shown}))
    places, labels, place = [], [], 0.0
    for i, entry in enumerate(shown):
        place += 1.0 if i and entry["task"] == shown[i - 1]["task"] else 1.9
        places.append(place)
        labels.append(entry["label"])
        if i == 0 or entry["task"] != shown[i - 1]["task"]:
            axes.text(0.01, place - 0.95, str(entry["title"]), transform=axes.get_yaxis_transform(), fontsize=8, weight="bold")
    axes.barh(
        places,
        [entry["against_sgd"] for entry in shown],
        color=[style(str(entry["optimizer"])).light for entry in shown],
        height=0.72,
    )
    known = [(entry["paper_against_sgd"], at) for entry, at in zip(shown, places, strict=True) if entry["paper_against_sgd"]]
    axes.plot([x for x, _ in known], [y for _, y in known], "D", color="0.15", markersize=4, label="paper")
    axes.axvline(1, color="0.4", linewidth=0.8)
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(place + 0.7, 0.5)
    axes.set_xlabel("time of an epoch, SGD = 1", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    diamonds, _ = axes.get_legend_handles_labels()
    handles = [Patch(color="0.6"), *diamonds]
    result.legend(handles, ["ours", "paper"], loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return result
