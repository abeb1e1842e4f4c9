"""Run folders as one HTML page: tables written here, curves drawn by web/chart.js from the data embedded in the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arturo_lab.report.page import colours, escape, filled, key, page
from arturo_lab.report.report_tables import fold_outs, summary_table, time_table
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.wording import count, protocol_words, seed_words
from arturo_lab.runs.records import Problem, Record

# What can be drawn: the field of a row, its name, and whether it is a fraction shown in percent.
METRICS = (
    ("test_accuracy", "test accuracy [%]", True),
    ("train_loss", "train loss [nats]", False),
    ("test_loss", "test loss [nats]", False),
    ("eta", "multiplier η", False),
    ("kl_over_bound", "KL / bound", False),
)


def report_page(sections: Sequence[Section], problems: Sequence[Problem], command: str, target: float | None = None) -> str:
    """The whole page. ``target`` is the accuracy to reach; None lets each section choose."""
    runs = [run for section in sections for run in section.runs]
    names = list(dict.fromkeys(section.title for section in sections))
    parts = {
        "counts": f"{count(len(runs), 'run')}, {count(len(sections), 'task')}"
        + "".join(f", {n} {status}" for status in ("diverged", "unfinished") if (n := sum(r.status == status for r in runs))),
        "problems": notice("Left out:", [escape(problem) for problem in problems]),
        "contents": contents(sections),
        "sections": "".join(section_html(i, section, target) for i, section in enumerate(sections)),
        "command": escape(command),
    }
    data = {"sections": [section_data(section) for section in sections]}
    styles, scripts = ("base.css", "report.css"), ("chart.js", "report.js", "theme.js")
    return page(f"arTuRO report: {', '.join(names)}", "report.html", parts, data, styles, scripts)


def contents(sections: Sequence[Section]) -> str:
    if len(sections) < 2:
        return ""
    links = (f'<a href="#task-{i}">{escape(s.title)}, {escape(protocol_words(s.protocol))}</a>' for i, s in enumerate(sections))
    return f'<nav class="contents" aria-label="Tasks">{"".join(links)}</nav>'


def section_html(index: int, section: Section, target: float | None) -> str:
    """One task: what went wrong, the table, the curves, where the time went, and how it was run."""
    toggles = (
        f'<button type="button" aria-pressed="true" data-series="{i}">{key(variant.look)}{escape(variant.label)}</button>'
        for i, variant in enumerate(section.variants)
    )
    parts = {
        "index": str(index),
        "title": escape(section.title),
        "protocol": escape(f"{protocol_words(section.protocol)}; {seed_words(section.seeds)}"),
        "mishaps": notice("", [escape(line) for line in mishaps(section)]),
        "summary": summary_table(section.summary(target), section.target if target is None else target),
        "metrics": "".join(f'<option value="{name}">{title}</option>' for name, title, _ in drawable(section)),
        "toggles": "".join(toggles),
        "times": time_table(section),
        "details": fold_outs(section),
    }
    return filled("section.html", parts)


def mishaps(section: Section) -> list[str]:
    """Every run that is not in the means, and why."""
    lines = []
    for variant in section.variants:
        for run in variant.runs:
            seed, done = run.config["seed"], f"{len(run.rows)} of {count(run.config['epochs'], 'epoch')}"
            if run.status == "diverged":
                lines.append(f"{variant.label}, seed {seed}: diverged after {done}; not in the means, drawn dotted to its ×")
            elif run.status == "unfinished":
                lines.append(f"{variant.label}, seed {seed}: unfinished, {done}; not in the table, drawn dotted to its ○")
    return lines


def notice(heading: str, lines: Sequence[str]) -> str:
    """A box with lines of HTML; nothing at all without lines."""
    if not lines:
        return ""
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<div class="notice" role="note">{heading}<ul>{items}</ul></div>'


def drawable(section: Section) -> list[tuple[str, str, bool]]:
    """Those of ``METRICS`` that some run has."""
    return [metric for metric in METRICS if any(value is not None for run in section.runs for value in run.series(metric[0]))]


def section_data(section: Section) -> dict[str, Any]:
    """What the curves are drawn from."""
    metrics = drawable(section)
    return {
        "metrics": [{"name": name, "title": title, "percent": percent} for name, title, percent in metrics],
        "series": [variant_data(variant, [name for name, _, _ in metrics]) for variant in section.variants],
    }


def variant_data(variant: Variant, metrics: Sequence[str]) -> dict[str, Any]:
    curves = {}
    for metric in metrics:
        curve = variant.curve(metric)
        curves[metric] = {
            "mean": [None if point is None else point.mean for point in curve],
            "error": [None if point is None else point.doubled_error for point in curve],
        }
    return {
        "label": variant.label,
        "colours": colours(variant.look),
        "dashes": " ".join(f"{2 * dash:g}" for dash in variant.look.dashes) or "none",
        "seconds": variant.times,
        "curves": curves,
        "runs": [run_data(run, metrics) for run in variant.runs],
    }


def run_data(run: Record, metrics: Sequence[str]) -> dict[str, Any]:
    values = {metric: run.series(metric) for metric in metrics}
    return {"seed": run.config["seed"], "status": run.status, "seconds": run.wall_seconds, "values": values}
