"""Run folders as one HTML page: tables written here, curves drawn by web/chart.js from the data embedded in the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arturo_lab.report.across import profiles_table, ranks_table, results_table
from arturo_lab.report.comparison import Comparison
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.page import colours, page, svg_dashes
from arturo_lab.report.ranking import CLOCKS, LARGEST_RATIO, Ranking
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.tables import (
    comparison_table,
    environment_table,
    pairs_table,
    runs_table,
    seeds_table,
    settings_table,
    times_table,
)
from arturo_lab.report.wording import count, protocol_words, seed_words
from arturo_lab.report.writers import html
from arturo_lab.runs.records import Problem, Record

# What can be drawn besides the task's own metric: the field of a row, its unit, whether more is better.
OTHERS = (
    ShownMetric("test_accuracy", "%"),
    ShownMetric("train_loss", "", higher=False),  # the unit is the task's
    ShownMetric("test_loss", "", higher=False),
    ShownMetric("eta", ""),
    ShownMetric("kl_over_bound", ""),
)
TITLES = {"eta": "multiplier η", "kl_over_bound": "KL / bound"}
FEW_PAIRS = 10  # are shown at once, more on demand


def report_page(
    sections: Sequence[Section],
    comparisons: Sequence[Comparison],
    ranking: Ranking | None,
    problems: Sequence[Problem],
    command: str,
    target: float | None = None,
    live: str | None = None,
) -> str:
    """The whole page. ``live`` is the signature of what it shows, for a page that is served and looks for a newer one."""
    runs = [run for section in sections for run in section.runs]
    lost = (f", {n} {status}" for status in ("diverged", "unfinished") if (n := sum(run.status == status for run in runs)))
    data = {
        "sections": [section_data(section) for section in sections],
        "profiles": None if ranking is None else profile_data(ranking),
    }
    return page(
        "report.html",
        ("base.css", "report.css"),
        (
            *(() if live is None else ("kept.js",)),
            "chart.js",
            "report.js",
            "profile.js",
            "tables.js",
            "theme.js",
            *(() if live is None else ("live.js",)),
        ),
        data,
        served=live is not None,
        titles=list(dict.fromkeys(section.title for section in sections)),
        counts=f"{count(len(runs), 'run')}, {count(len(sections), 'task')}{''.join(lost)}",
        problems=[str(problem) for problem in problems],
        sections=[section_values(s, c, target) for s, c in zip(sections, comparisons, strict=True)],
        across=None if ranking is None else across_values(ranking),
        command=command,
        live=live,
    )


def across_values(ranking: Ranking) -> dict[str, Any]:
    """What the part on all tasks shows."""
    return {
        "about": f"{len(ranking.standings)} optimizers on {count(len(ranking.sections), 'task')}",
        "ranks": html(ranks_table(ranking)),
        "profiles": html(profiles_table(ranking)),
        "results": html(results_table(ranking)),
        "legend": [(standing.label, standing.look) for standing in ranking.standings],
    }


def section_values(section: Section, comparison: Comparison, target: float | None) -> dict[str, Any]:
    """What section.html shows of one task: what went wrong, the table, the curves, where the time went, how it was run."""
    times = times_table(section)
    pairs = comparison.reference is None and len(comparison.differences) > 0
    details = (
        ("Single seeds", seeds_table(section)),
        ("Settings", settings_table(section)),
        ("Environment", environment_table(section.runs)),
        ("Runs", runs_table(section)),
    )
    return {
        "title": section.title,
        "protocol": protocol_words(section.protocol),
        "seeds": seed_words(section.seeds),
        "mishaps": mishaps(section),
        "summary": html(comparison_table(section, comparison, target)) if section.ranked else None,
        "pairs": html(pairs_table(section, comparison)) if pairs else None,
        "pairs_open": len(comparison.differences) <= FEW_PAIRS,
        "metrics": [{"name": metric.name, "title": chart_title(metric)} for metric in drawable(section)],
        "legend": [(variant.label, variant.look) for variant in section.variants],
        "times": None if times is None else html(times),
        "details": [(title, html(table)) for title, table in details if table.rows],
    }


def mishaps(section: Section) -> list[str]:
    """Every run that is not in the means, and why."""
    lines = []
    for variant in section.variants:
        for run in variant.runs:
            seed, done = run.config["seed"], f"{len(run.rows)} of {count(run.config['epochs'], 'epoch')}"
            if run.status == "diverged":
                lines.append(
                    f"{variant.label}, seed {seed}: diverged after {done}; left out of means, worse than any finished run in "
                    "orders and tests, drawn dotted up to its ×"
                )
            elif run.status == "unfinished":
                lines.append(f"{variant.label}, seed {seed}: unfinished, {done}; not in the table, drawn dotted up to its ○")
    return lines


def drawable(section: Section) -> list[ShownMetric]:
    """The task's metric and those of ``OTHERS`` that some run has."""
    others = [
        replace(metric, unit=section.loss_unit) if metric.name.endswith("_loss") else metric
        for metric in OTHERS
        if metric.name != section.metric.name
    ]
    return [
        section.on_curves(m)
        for m in (section.metric, *others)
        if any(value is not None for run in section.runs for value in run.series(m.name))
    ]


def chart_title(metric: ShownMetric) -> str:
    return TITLES.get(metric.name, metric.heading)


def section_data(section: Section) -> dict[str, Any]:
    """What the curves are drawn from."""
    metrics = drawable(section)
    return {
        "metrics": [{"name": m.name, "title": chart_title(m), "percent": m.unit == "%", "higher": m.higher} for m in metrics],
        "series": [variant_data(variant, [metric.name for metric in metrics]) for variant in section.variants],
    }


def variant_data(variant: Variant, metrics: Sequence[str]) -> dict[str, Any]:
    curves = {}
    for metric in metrics:
        points = variant.curve(metric)
        curves[metric] = {key: [None if p is None else getattr(p, key) for p in points] for key in ("mean", "low", "high")}
    return {
        "label": variant.label,
        "colours": colours(variant.look),
        "dashes": svg_dashes(variant.look, 2),
        "marker": variant.look.marker,
        "drawn": len(variant.drawn),
        "seconds": variant.times,
        "curves": curves,
        "runs": [run_data(run, metrics) for run in variant.runs],
    }


def run_data(run: Record, metrics: Sequence[str]) -> dict[str, Any]:
    values = {metric: run.series(metric) for metric in metrics}
    return {"seed": run.config["seed"], "status": run.status, "seconds": run.wall_seconds, "values": values}


def profile_data(ranking: Ranking) -> dict[str, Any]:
    series = [
        {
            "label": standing.label,
            "colours": colours(standing.look),
            "dashes": svg_dashes(standing.look, 2),
            "ratios": {clock: [r for r in standing.profiles[clock].ratios if r <= LARGEST_RATIO] for clock in CLOCKS},
        }
        for standing in ranking.standings
    ]
    return {"tasks": len(ranking.sections), "largest": LARGEST_RATIO, "series": series}
