"""What ``arturo calibrate`` writes: NAME.md for people, NAME.json for programs, NAME.png and NAME.pdf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from arturo_lab.report.document import Document, Part
from arturo_lab.report.table import Cell, Column, Row, Table, number, with_best, words
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.uncertainty.calibrate import Outcome
from arturo_lab.uncertainty.methods import METHODS
from arturo_lab.uncertainty.scores import BINS

# field, heading, unit, factor, digits, whether more is better
SCORES = (
    ("accuracy", "accuracy", "%", 100, 2, True),
    ("nll", "NLL", "nats", 1, 4, False),
    ("ece", "ECE", "%", 100, 2, False),
    ("brier", "Brier", "", 1, 4, False),
    ("ood_auroc", "AUROC elsewhere", "%", 100, 2, True),
)
PAIR = (Column("what", align="left"), Column("value", align="left", wrap=True))


def scores_table(task: str, outcomes: Sequence[Outcome]) -> Table:
    """A row for each method; the best of each column is marked."""
    judged = tuple(
        Column(heading, key=field, unit=unit, better="higher" if more else "lower")
        for field, heading, unit, _, _, more in SCORES
    )
    columns = (
        Column("method", key="label", align="left"),
        *judged,
        Column("networks trained", key="networks", secondary=True),
        Column("passes per prediction", key="passes", secondary=True),
        Column("chosen", key="chosen_text", align="left", secondary=True),
    )
    rows: list[Row] = []
    for outcome in outcomes:
        scores = []
        for field, _, _, factor, digits, _ in SCORES:
            value = getattr(outcome.scores, field)
            scores.append(number(value, "" if value is None else f"{factor * value:.{digits}f}"))
        name = Cell(METHODS[outcome.method].label, METHODS[outcome.method].label, fields={"method": outcome.method})
        counts = (Cell(str(n), n) for n in (outcome.networks, outcome.passes))
        rows.append((name, *scores, *counts, Cell(chosen(outcome.chosen), fields={"chosen": outcome.chosen})))
    return Table("calibrate", TASKS[task].title, columns, with_best(columns, rows))


def document(task: str, command: str, protocol: dict[str, Any], outcomes: Sequence[Outcome], notes: Sequence[str]) -> Document:
    """The outcomes with everything one must know to judge them. ``protocol`` in words and numbers."""
    how = Table("protocol", "Protocol", PAIR, tuple((words(name), words(value)) for name, value in protocol.items()))
    about = [(METHODS[o.method].label, METHODS[o.method].about) for o in outcomes]
    methods = Table("methods", "Methods", PAIR, tuple((words(name), words(text)) for name, text in about))
    parts = (
        Part("", (), scores_table(task, outcomes), tuple(notes), figure(outcomes)),
        Part("Protocol", (), how, shown=False),
        Part("Methods", (), methods, shown=False),
    )
    facts = {"task": task, "protocol": protocol, "methods": [outcome.to_json() for outcome in outcomes]}
    return Document(f"calibrate-{task}", f"Calibration: {TASKS[task].title}", command, parts, facts)


def chosen(values: dict[str, Any]) -> str:
    """
    Example:
        >>> chosen({"temperature": 0.01, "prior_precision": 100.0, "held_out_nll": 0.4, "at_edge": True}), chosen({})
        ('T = 0.01, prior 100 (edge)', '–')
    """
    if not values:
        return "–"
    edge = " (edge)" if values["at_edge"] else ""
    return f"T = {values['temperature']:g}, prior {values['prior_precision']:g}{edge}"


def figure(outcomes: Sequence[Outcome]) -> Figure:
    """A reliability diagram for each method: accuracy over confidence, and how many predictions there are of each."""
    columns = min(len(outcomes), 4)
    rows = -(-len(outcomes) // columns)
    result = Figure(figsize=(2.5 * columns, 2.7 * rows), layout="constrained")
    FigureCanvasAgg(result)
    panels = result.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, outcome in zip(panels.flat, outcomes, strict=False):
        draw(axes, outcome)
    for axes in list(panels.flat)[len(outcomes) :]:
        axes.set_axis_off()
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    return result


def draw(axes: Axes, outcome: Outcome) -> None:
    bins = outcome.scores.bins
    confidence, accuracy = (np.array([getattr(b, name) for b in bins]) for name in ("confidence", "accuracy"))
    share = np.array([b.count for b in bins]) / sum(b.count for b in bins)
    axes.bar(confidence, share, width=0.8 / BINS, color="0.85", label="share of predictions")
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle="--")
    axes.plot(confidence, accuracy, color="#D55E00", linewidth=1.5, marker="o", markersize=3)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1))
    axes.set_title(f"{METHODS[outcome.method].label}\nECE {100 * outcome.scores.ece:.1f} %", fontsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
