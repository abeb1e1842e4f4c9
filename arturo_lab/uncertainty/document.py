"""What ``arturo calibrate`` writes: NAME.md for people, NAME.json for programs, NAME.png and NAME.pdf."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from arturo_lab.report.document import Document, Part
from arturo_lab.report.evidence import Estimate
from arturo_lab.report.table import Cell, Column, Row, Table, words
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
NEEDS_ACCURACY = ("ece", "ood_auroc")  # a method that guesses could win these
CLOSE = 0.9  # of the highest accuracy: less is no competitor
PAIR = (Column("what", align="left"), Column("value", align="left", wrap=True))


def scores_table(task: str, outcomes: Sequence[Outcome], diverged: Mapping[str, int]) -> Table:
    """A row for each method: means over the seeds with half of their t-interval. The best of each column is marked.

    Calibration error and AUROC alone do not make a method good: one that guesses is perfectly calibrated. Their best is sought
    among those whose accuracy is at least ``CLOSE`` times the highest.
    """
    judged = tuple(
        Column(heading, key=field, unit=unit, better="higher" if more else "lower", secondary=field in ("brier", "ood_auroc"))
        for field, heading, unit, _, _, more in SCORES
    )
    columns = (
        Column("method", key="label", align="left"),
        *judged,
        Column("seeds", secondary=True),
        Column("networks per seed", key="networks", secondary=True),
        Column("passes per prediction", key="passes", secondary=True),
        Column("chosen", key="chosen_text", align="left", secondary=True),
    )
    estimates = {name: estimates_of(own) for name, own in by_method(outcomes).items()}
    highest = max((of["accuracy"].mean for of in estimates.values()), default=0.0)
    rows: list[Row] = []
    for name, own in by_method(outcomes).items():
        usable = estimates[name]["accuracy"].mean >= CLOSE * highest
        cells = []
        for field, _, _, factor, digits, _ in SCORES:
            estimate = estimates[name].get(field)
            best = (
                estimate is not None
                and (usable or field not in NEEDS_ACCURACY)
                and estimate.mean == best_of(field, estimates, highest)
            )
            cells.append(score_cell(estimate, field, factor, digits, best, [getattr(o.scores, field) for o in own]))
        lost = diverged.get(name, 0)
        label = Cell(
            METHODS[name].label,
            METHODS[name].label,
            f"{lost} diverged" if lost else "",
            fields={"method": name, "diverged": lost},
        )
        counts = (Cell(str(n), n) for n in (len(own), own[0].networks, own[0].passes))
        texts = dict.fromkeys(chosen(outcome.chosen) for outcome in own)
        rows.append((label, *cells, *counts, Cell("; ".join(texts), fields={"chosen": [outcome.chosen for outcome in own]})))
    return Table("calibrate", TASKS[task].title, columns, tuple(rows))


def by_method(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    result: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        result.setdefault(outcome.method, []).append(outcome)
    return result


def estimates_of(outcomes: Sequence[Outcome]) -> dict[str, Estimate]:
    """By score, over the seeds; without those that there are none of."""
    values = {field: [getattr(outcome.scores, field) for outcome in outcomes] for field, *_ in SCORES}
    return {field: Estimate.of(known) for field, known in values.items() if None not in known}


def best_of(field: str, estimates: Mapping[str, Mapping[str, Estimate]], highest: float) -> float | None:
    """The best mean of a score, among the methods that count for it."""
    more = next(more for name, *_, more in SCORES if name == field)
    counted = [
        of[field].mean
        for of in estimates.values()
        if field in of and (field not in NEEDS_ACCURACY or of["accuracy"].mean >= CLOSE * highest)
    ]
    return (max if more else min)(counted) if counted else None


def score_cell(
    estimate: Estimate | None, field: str, factor: float, digits: int, best: bool, values: Sequence[float | None]
) -> Cell:
    if estimate is None:
        return Cell("-")
    text, width = f"{factor * estimate.mean:.{digits}f}", estimate.half_width
    text += "" if width is None else f" ± {factor * width:.{digits}f}"
    return Cell(text, estimate.mean, best=best, fields={f"{field}_half_width": width, f"{field}_by_seed": list(values)})


def document(
    task: str,
    command: str,
    protocol: dict[str, Any],
    outcomes: Sequence[Outcome],
    notes: Sequence[str],
    diverged: Mapping[str, int] | None = None,
) -> Document:
    """The outcomes with everything one must know to judge them. ``protocol`` in words and numbers."""
    how = Table("protocol", "Protocol", PAIR, tuple((words(name), words(value)) for name, value in protocol.items()))
    about = [(METHODS[name].label, METHODS[name].about) for name in by_method(outcomes)]
    methods = Table("methods", "Methods", PAIR, tuple((words(name), words(text)) for name, text in about))
    parts = (
        Part("", (), scores_table(task, outcomes, diverged or {}), tuple(notes), figure(outcomes)),
        Part("Protocol", (), how, shown=False),
        Part("Methods", (), methods, shown=False),
    )
    facts = {"task": task, "protocol": protocol, "methods": [outcome.to_json() for outcome in outcomes]}
    return Document(f"calibrate-{task}", f"Calibration: {TASKS[task].title}", command, parts, facts)


def chance_words(classes: int) -> str:
    """What guessing would score, so that no number is read without it.

    Example:
        >>> chance_words(10)
        'Guessing every class alike would have 10 % accuracy, NLL 2.303, ECE 0 and Brier 0.900.'
    """
    share = 1 / classes
    return (
        f"Guessing every class alike would have {100 * share:g} % accuracy, NLL {math.log(classes):.3f}, ECE 0 and Brier "
        f"{1 - share:.3f}."
    )


def chosen(values: dict[str, Any]) -> str:
    """
    Example:
        >>> chosen({"temperature": 0.01, "prior_precision": 100.0, "at_edge": True, "edges": ["temperature"]})
        'T = 0.01 (edge), prior 100'
        >>> chosen({"temperature": 1.53, "at_edge": False, "edges": []}), chosen({})
        ('T = 1.53', '-')
    """
    if not values:
        return "-"
    edges = values["edges"]
    parts = [f"T = {values['temperature']:.3g}" + (" (edge)" if "temperature" in edges else "")]
    if "prior_precision" in values:
        parts.append(f"prior {values['prior_precision']:g}" + (" (edge)" if "prior" in edges else ""))
    return ", ".join(parts)


def figure(outcomes: Sequence[Outcome]) -> Figure:
    """A reliability diagram for each method: accuracy over confidence, and how many predictions there are of each."""
    methods = by_method(outcomes)
    columns = min(len(methods), 4)
    rows = -(-len(methods) // columns)
    result = Figure(figsize=(2.5 * columns, 2.7 * rows), layout="constrained")
    FigureCanvasAgg(result)
    panels = result.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, (name, own) in zip(panels.flat, methods.items(), strict=False):
        draw(axes, name, own)
    for axes in list(panels.flat)[len(methods) :]:
        axes.set_axis_off()
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    seeds = "One seed" if len({outcome.seed for outcome in outcomes}) == 1 else "A line for each seed"
    result.supxlabel(
        f"{seeds}. Grey bars: share of the predictions with this confidence. Dashed: perfect calibration.", fontsize=8
    )
    return result


def draw(axes: Axes, method: str, outcomes: Sequence[Outcome]) -> None:
    """A line for each seed; the shares are those of all seeds."""
    for i, outcome in enumerate(outcomes):
        bins = outcome.scores.bins
        confidence, accuracy = (np.array([getattr(b, name) for b in bins]) for name in ("confidence", "accuracy"))
        share = np.array([b.count for b in bins]) / sum(b.count for b in bins) / len(outcomes)
        axes.bar(confidence, share, width=0.8 / BINS, color="0.85")
        axes.plot(
            confidence, accuracy, color="#D55E00", linewidth=1.2, marker="o", markersize=2.5, alpha=1.0 if i == 0 else 0.6
        )
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle="--")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1))
    of = estimates_of(outcomes)
    axes.set_title(
        f"{METHODS[method].label}\naccuracy {100 * of['accuracy'].mean:.1f} %, ECE {100 * of['ece'].mean:.1f} %", fontsize=8
    )
    axes.spines[["top", "right"]].set_visible(False)
