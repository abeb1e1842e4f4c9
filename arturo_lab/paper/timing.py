"""tab:timing: seconds per training epoch, and what they are against SGD's. Seconds of two machines do not compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from arturo_lab.paper import published
from arturo_lab.paper.content import Content
from arturo_lab.report.palette import style
from arturo_lab.report.plots import grid
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.table import Cell, Column, Row, Table, number, words
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record

YARDSTICK = "sgd"
NOTE = (
    "An epoch is the training alone, without the test: the median over rounds and epochs, in brackets the shortest and "
    "the longest. "
    "× SGD: the median over the rounds of the ratio within a round, in brackets the lowest and the highest. The optimizer's "
    "step is its share of one training step, the schedule included; the rest is data, forward and backward pass, the same for "
    "every optimizer."
)


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers and their ends."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """
        Example:
            >>> Spread.of([3.0, 1.0, 2.0]), Spread.of([])
            (Spread(median=2.0, low=1.0, high=3.0), None)
        """
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Timing:
    """One bar of the figure."""

    title: str
    variant: Variant
    ratio: Spread | None
    paper_ratio: float | None


def timing_table(sections: Sequence[Section], against: str | None = None) -> Content:
    """One row per task and optimizer. Always against SGD."""
    columns = (
        Column("task", align="left"),
        Column("optimizer", key="label", align="left"),
        Column("epoch", key="seconds_per_epoch", unit="s"),
        Column("× SGD", key="against_sgd"),
        Column("optimizer's step", key="optimizer_milliseconds_per_step", unit="ms"),
        Column("paper, epoch", key="paper_seconds_per_epoch", unit="s"),
        Column("paper, × SGD", key="paper_against_sgd"),
    )
    rows: list[Row] = []
    timings = []
    for section in sections:
        sgd = next((variant for variant in section.variants if variant.optimizer == YARDSTICK), None)
        paper_base = published.seconds_per_epoch(YARDSTICK, section.task)
        for variant in section.variants:
            theirs, step = published.seconds_per_epoch(variant.optimizer, section.task), milliseconds_per_step(variant)
            seconds, ratio = Spread.of(warm_values(variant.runs, "seconds")), None if sgd is None else ratios(variant, sgd)
            paper_ratio = None if theirs is None or not paper_base else theirs / paper_base
            timings.append(Timing(section.title, variant, ratio, paper_ratio))
            rows.append(
                (
                    words(section.task),
                    Cell(variant.label, variant.label, fields={"optimizer": variant.optimizer}),
                    spread_cell(seconds, "seconds_per_epoch", 2),
                    spread_cell(ratio, "against_sgd", 3),
                    number(step, "" if step is None else f"{step:.2f}"),
                    number(theirs, "" if theirs is None else f"{theirs:.2f}"),
                    number(paper_ratio, "" if paper_ratio is None else f"{paper_ratio:.3f}"),
                )
            )
    return Content(Table("timing", "Time per training epoch", columns, tuple(rows), (NOTE,)), (), figure(timings))


def spread_cell(spread: Spread | None, name: str, digits: int) -> Cell:
    if spread is None:
        return Cell("-")
    detail = "" if spread.low == spread.high else f"{spread.low:.{digits}f} to {spread.high:.{digits}f}"
    return Cell(
        f"{spread.median:.{digits}f}", spread.median, detail, fields={f"{name}_low": spread.low, f"{name}_high": spread.high}
    )


def warm_values(runs: Sequence[Record], key: str) -> list[float]:
    """Of the epochs that count: in the first one of a training, memory and kernels are still being set up."""
    rows = (row for run in runs for row in (run.rows[1:] or run.rows))
    return [value for row in rows if (value := row.get(key)) is not None]


def ratios(variant: Variant, base: Variant) -> Spread | None:
    """Round by round, so that a machine that slows down does so for both."""
    theirs = {run.config["seed"]: values for run in base.runs if (values := warm_values([run], "seconds"))}
    ours = {run.config["seed"]: values for run in variant.runs if (values := warm_values([run], "seconds"))}
    return Spread.of([statistics.median(ours[s]) / statistics.median(theirs[s]) for s in sorted(set(ours) & set(theirs))])


def milliseconds_per_step(variant: Variant) -> float | None:
    """Of the optimizer alone."""
    taken = warm_values(variant.runs, "seconds_optimizer")
    return 1000 * statistics.median(taken) / RunConfig.from_json(variant.runs[0].config).steps_per_epoch if taken else None


def figure(timings: Sequence[Timing]) -> Figure | None:
    """Bars for ours with their spread over the rounds, diamonds for the paper's; SGD is the line at 1."""
    shown = [timing for timing in timings if timing.ratio is not None and timing.variant.optimizer != YARDSTICK]
    if not shown:
        return None
    result, (axes,) = grid(1, 1)
    result.set_size_inches(6.5, 1.4 + 0.2 * len(shown) + 0.2 * len({timing.title for timing in shown}))
    place = 0.0
    places = []
    for i, timing in enumerate(shown):
        first = i == 0 or timing.title != shown[i - 1].title
        place += 1.9 if first else 1.0
        places.append(place)
        if first:
            axes.text(0.01, place - 0.95, timing.title, transform=axes.get_yaxis_transform(), fontsize=8, weight="bold")
        assert timing.ratio is not None
        median = timing.ratio.median
        ends = [[median - timing.ratio.low], [timing.ratio.high - median]]
        axes.barh(place, median, color=style(timing.variant.optimizer).light, height=0.72)
        axes.errorbar(median, place, xerr=ends, color="0.1", linewidth=1, capsize=2)
    known = [(timing.paper_ratio, at) for timing, at in zip(shown, places, strict=True) if timing.paper_ratio]
    axes.plot(
        [x for x, _ in known], [y for _, y in known], "D", color="white", markeredgecolor="0.1", markersize=4.5, label="paper"
    )
    axes.axvline(1, color="0.4", linewidth=0.8)
    axes.set_yticks(places, [timing.variant.label for timing in shown], fontsize=8)
    axes.set_ylim(place + 0.7, 0.5)
    axes.set_xlabel("time of an epoch, SGD = 1 (linear scale)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    diamonds, _ = axes.get_legend_handles_labels()
    handles = [Patch(color="0.6"), *diamonds]
    names = ["ours: median of the rounds, whiskers from the lowest to the highest", "paper"]
    result.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return result
