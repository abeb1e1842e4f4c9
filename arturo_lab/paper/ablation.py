"""fig:ablation: arTuRO with parts replaced; beside the accuracy, what the trust region did and how well the model predicted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from arturo_lab.paper.accuracy import comparisons
from arturo_lab.paper.document import Content
from arturo_lab.report.plots import add_legend, draw_curves, grid
from arturo_lab.report.sections import Section
from arturo_lab.report.summary import row_summary
from arturo_lab.report.wording import mean_with_error, p_value, p_words, protocol_words
from arturo_lab.runs.records import Record, number, read_steps

HEADINGS = ("task", "optimizer", "test accuracy [%]", "p", "train loss", "KL / bound", "prediction error", "runs")
PANELS = {"test_accuracy": "test accuracy [%]", "prediction_error": "prediction error"}
NOTE = (
    "Mean ± doubled standard error after the last epoch; the best is bold. KL / bound: 5 %, 50 % and 95 % of all steps; an "
    "exact trust region that is active has 1. Prediction error: |g − (aμ + b)| / |g|, the distance of the gradient that the "
    "surrogate predicts at the new mean from the one then seen, the same shares of all steps; 1 is what predicting no gradient "
    "at all would give."
)


def ablation(sections: Sequence[Section]) -> Content:
    """One row per optimizer; the curves of test accuracy and, where there is one, prediction error."""
    rows: list[tuple[str, ...]] = []
    data: list[dict[str, Any]] = []
    for section in sections:
        for row in section.summary():
            variant = row.variant
            steps = [step for run in variant.runs for step in read_steps(run.folder)]
            region, error = quantiles(kl_over_bound(steps)), quantiles(values(steps, "prediction_error"))
            loss = [run.rows[-1].get("train_loss") for run in variant.finished]
            accuracy = "-" if row.accuracy is None else mean_with_error(row.accuracy, 100, 2)
            rows.append(
                (
                    section.task,
                    variant.label,
                    f"**{accuracy}**" if row.best else accuracy,
                    "best" if row.best else "-" if row.p is None else p_value(row.p, row.pairs).removeprefix("p = "),
                    mean_text(loss),
                    spread(region),
                    spread(error),
                    finished_words(variant.runs),
                )
            )
            data.append({"task": section.task, **row_summary(row), "kl_over_bound": region, "prediction_error": error})
    return Content(HEADINGS, rows, data, (f"{NOTE} {p_words(comparisons(sections))}",), figure(sections))


def values(steps: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [value for step in steps if (value := number(step.get(key))) is not None]


def kl_over_bound(steps: Sequence[dict[str, Any]]) -> list[float]:
    pairs = ((number(step.get("kl")), number(step.get("bound"))) for step in steps)
    return [kl / bound for kl, bound in pairs if kl is not None and bound]


def quantiles(found: Sequence[float]) -> list[float] | None:
    """5 %, 50 %, 95 %; None without values.

    Example:
        >>> quantiles([float(x) for x in range(101)]), quantiles([])
        ([5.0, 50.0, 95.0], None)
    """
    if not found:
        return None
    ordered = sorted(found)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0.05, 0.5, 0.95)]


def spread(shares: Sequence[float] | None) -> str:
    """
    Example:
        >>> spread([0.0123456, 1.0, 20.0]), spread(None)
        ('0.0123 · 1.00 · 20.0', '-')
    """
    return "-" if shares is None else " · ".join(f"{share:#.3g}".rstrip(".") for share in shares)


def mean_text(found: Sequence[float | None]) -> str:
    known = [value for value in found if value is not None]
    return f"{statistics.fmean(known):.4f}" if known else "-"


def finished_words(runs: Sequence[Record]) -> str:
    diverged = sum(run.status == "diverged" for run in runs)
    return f"{len(runs)}, {diverged} diverged" if diverged else str(len(runs))


def figure(sections: Sequence[Section]) -> Figure | None:
    """Accuracy and prediction error side by side, a row of panels for each task."""
    drawn = [section for section in sections if any(variant.times for variant in section.variants)]
    if not drawn:
        return None
    result, panels = grid(len(drawn), len(PANELS))
    for i, section in enumerate(drawn):
        for j, (metric, title) in enumerate(PANELS.items()):
            axes = panels[i * len(PANELS) + j]
            shown = [variant for variant in section.variants if any(variant.curve(metric))]
            axes.set_visible(bool(shown))
            draw_curves(axes, shown, metric, over_time=False)
            axes.set_title(f"{section.title}\n{protocol_words(section.protocol)}", loc="left", fontsize=8)
            axes.set_xlabel("epoch", fontsize=8)
            axes.set_ylabel(title, fontsize=8)
    add_legend(result, panels, len(PANELS))
    return result
