"""fig:ablation: arTuRO with parts replaced; beside the accuracy, what the trust region did and how well the model predicted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from arturo_lab.paper.accuracy import accuracy_cell, against_cell, comparison_notes, lost_cell
from arturo_lab.paper.content import Content
from arturo_lab.report.comparison import compare
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.plots import add_legend, bands_words, draw_curves, grid
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.table import Cell, Column, Row, Table, number, words
from arturo_lab.report.wording import protocol_words
from arturo_lab.runs.records import number as finite
from arturo_lab.runs.records import read_steps

PANELS = (ShownMetric(), ShownMetric("prediction_error", ""))
REFERENCE = "arturo"
NOTE = (
    "Mean ± doubled standard error after the last epoch; the best is bold. KL / bound: its 5 %, 50 % and 95 % quantiles over "
    "all steps; an exact trust region that is active has 1. Prediction error: |g − (aμ + b)| / |g|, how far the gradient that "
    "the surrogate predicts at the new mean is from the one then observed, at the same quantiles; predicting no gradient at "
    "all would give 1."
)


def ablation(sections: Sequence[Section], against: str | None = None) -> Content:
    """One row per optimizer; the curves of test accuracy and, where there is one, prediction error."""
    columns = (
        Column("task", align="left"),
        Column("optimizer", key="label", align="left"),
        Column("test accuracy", unit="%", better="higher"),
        Column("difference", unit="points"),
        Column("train loss", better="lower"),
        Column("KL / bound", key="kl_over_bound"),
        Column("prediction error", better="lower"),
        Column("runs"),
    )
    rows: list[Row] = []
    comparisons = [compare(section, against or REFERENCE) for section in sections]
    for section, comparison in zip(sections, comparisons, strict=True):
        for variant in section.variants:
            region, error = step_shares(variant)
            loss = [value for run in variant.finished if (value := run.rows[-1].get("train_loss")) is not None]
            mean_loss = statistics.fmean(loss) if loss else None
            rows.append(
                (
                    words(section.task),
                    Cell(variant.label, variant.label, fields={"optimizer": variant.optimizer}),
                    accuracy_cell(variant.estimate, "test_accuracy", best=variant is section.best),
                    against_cell(comparison, variant),
                    number(mean_loss, "" if mean_loss is None else f"{mean_loss:.4f}"),
                    shares_cell(region, "kl_over_bound"),
                    shares_cell(error, "prediction_error"),
                    lost_cell(variant),
                )
            )
    notes = (NOTE, *comparison_notes(comparisons))
    return Content(Table("ablation", "Ablation", columns, tuple(rows), notes), (), figure(sections))


def step_shares(variant: Variant) -> tuple[list[float] | None, list[float] | None]:
    """Of all steps of all runs: KL / bound and prediction error at 5 %, 50 % and 95 %.

    A run without its steps, as in a file of rows, may bring the shares themselves.
    """
    steps = [step for run in variant.runs for step in read_steps(run.folder)]
    if steps:
        return quantiles(kl_over_bound(steps)), quantiles(values(steps, "prediction_error"))
    kept = [run.result.get("step_shares") for run in variant.runs]
    shares = next((each for each in kept if isinstance(each, dict)), {})
    return shares.get("kl_over_bound"), shares.get("prediction_error")


def values(steps: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [value for step in steps if (value := finite(step.get(key))) is not None]


def kl_over_bound(steps: Sequence[dict[str, Any]]) -> list[float]:
    pairs = ((finite(step.get("kl")), finite(step.get("bound"))) for step in steps)
    return [kl / bound for kl, bound in pairs if kl is not None and bound]


def quantiles(known: Sequence[float]) -> list[float] | None:
    """5 %, 50 %, 95 %; None without values.

    Example:
        >>> quantiles([float(x) for x in range(101)]), quantiles([])
        ([5.0, 50.0, 95.0], None)
    """
    if not known:
        return None
    ordered = sorted(known)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0.05, 0.5, 0.95)]


def shares_cell(shares: Sequence[float] | None, name: str) -> Cell:
    """
    Example:
        >>> shares_cell([0.0123456, 1.0, 20.0], "kl").text, shares_cell(None, "kl").text
        ('0.0123 · 1.00 · 20.0', '-')
    """
    if shares is None:
        return Cell("-")
    text = " · ".join(f"{share:#.3g}".rstrip(".") for share in shares)
    return Cell(text, shares[1], fields={f"{name}_shares": list(shares)})


def figure(sections: Sequence[Section]) -> Figure | None:
    """Accuracy and prediction error side by side, a row of panels for each task."""
    drawn = [section for section in sections if any(variant.times for variant in section.variants)]
    if not drawn:
        return None
    result, panels = grid(len(drawn), len(PANELS))
    for i, section in enumerate(drawn):
        for j, metric in enumerate(PANELS):
            axes = panels[i * len(PANELS) + j]
            shown = [variant for variant in section.variants if any(variant.curve(metric.name))]
            axes.set_visible(bool(shown))
            draw_curves(axes, shown, metric, over_time=False, title=False)
            axes.set_title(f"{section.title}\n{protocol_words(section.protocol)}", loc="left", fontsize=8)
            axes.set_xlabel("epoch", fontsize=8)
            axes.set_ylabel(f"{metric.heading}, {axes.get_yscale()} scale", fontsize=8)
    add_legend(result, panels, len(PANELS), bands_words([variant for section in drawn for variant in section.variants]))
    return result
