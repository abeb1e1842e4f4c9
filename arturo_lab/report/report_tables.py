"""The tables of the report page: the comparison, where the time goes, how it was run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from arturo_lab.report.page import escape, key
from arturo_lab.report.sections import PARTS, PROTOCOL, Section, Summary, Variant, flattened
from arturo_lab.report.wording import count, duration, fraction, mean_with_error, p_value, p_words
from arturo_lab.runs.records import Record


def summary_table(rows: Sequence[Summary], target: float | None) -> str:
    """The table of the comparison, and what its numbers mean."""
    if not any(row.accuracy for row in rows):
        return "<p>No run has finished yet: the curves below show those under way.</p>"
    to = "" if target is None else f" to {fraction(target)} %"
    head = (
        "optimizer",
        "test accuracy [%]",
        "against the best",
        "test loss",
        "runs",
        "time per epoch",
        f"epochs{to}",
    )
    body = "".join(f"<tr>{''.join(summary_cells(row))}</tr>" for row in rows)
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    return (
        f'<div class="scroll"><table class="summary"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="footnote">{escape(footnote(rows))}</p>'
    )


def summary_cells(row: Summary) -> list[str]:
    variant = row.variant
    runs = [f"{len(variant.finished)} finished"]
    runs += [f"{n} {status}" for status in ("diverged", "unfinished") if (n := len(variant.with_status(status)))]
    cells = [f'<th scope="row">{key(variant.look)}{escape(variant.label)}</th>']
    if row.accuracy is None:
        cells += ["<td>-</td>"] * 3
    else:
        interval = "" if row.interval is None else f"{fraction(row.interval[0], 2)} to {fraction(row.interval[1], 2)}"
        loss = "-" if row.loss is None else mean_with_error(row.loss, 1, 4)
        cells += [
            cell(mean_with_error(row.accuracy, 100, 2), interval, best=row.best),
            cell("best", "", best=True) if row.best else cell(against_best(row), p_value(row.p, row.pairs)),
            cell(loss),
        ]
    seconds = variant.seconds_per_epoch
    cells.append(cell(runs[0], ", ".join(runs[1:])))
    cells.append(cell("-" if seconds is None else duration(seconds)))
    arrived = f"{row.reached} of {len(variant.runs)} got there"
    if row.epochs_to_target is None or row.seconds_to_target is None:  # fewer than half did
        cells.append(cell("-", arrived))
    else:
        cells.append(cell(f"{row.epochs_to_target:g}", f"{duration(row.seconds_to_target)}; {arrived}"))
    return cells


def cell(text: str, small: str = "", best: bool = False) -> str:
    extra = f"<small>{escape(small)}</small>" if small else ""
    return f"<td{' class=best' if best else ''}>{escape(text)}{extra}</td>"


def against_best(row: Summary) -> str:
    """Percentage points, with a sign: minus is behind."""
    return "-" if row.behind is None else f"{-100 * row.behind:+.2f}".replace("-", "−").replace("+0.00", "0.00")


def footnote(rows: Sequence[Summary]) -> str:
    """How to read the table; with few seeds, what it cannot say."""
    lost = any(row.variant.with_status("diverged") for row in rows)
    excluded = " An optimizer with diverged runs is not called best while another has none." if lost else ""
    times = (
        "Times are of training, without the test: per epoch the median; to the target the median over all runs, which there is "
        "if half of them got there."
    )
    n = max(len(row.variant.finished) for row in rows)
    if n == 1:
        return f"One seed: no spread and no test. {times}{excluded}"
    tests = sum(row.p is not None for row in rows)
    covered = 100 * (1 - 2.0 ** (1 - n))
    return (
        f"Mean ± doubled standard error over up to {n} seeds; below it a 95 % bootstrap interval of the mean (expanded "
        f"percentile; whatever its level, {n} seeds cover the mean of a symmetric distribution with at most {covered:.0f} %). "
        f"Against the best: mean difference over shared seeds in percentage points. {p_words(tests)} {times}{excluded}"
    )


def time_table(section: Section) -> str:
    """Where an epoch's time goes, as bars of one scale."""
    splits = [(variant, split) for variant in section.variants if (split := variant.time_split)]
    if not splits:
        return ""
    longest = max(sum(split.values()) for _, split in splits)
    if longest <= 0:
        return ""
    shown = [part for part in PARTS if any(split[part] >= 0.005 * longest for _, split in splits)]
    titles = "".join(f'<th scope="col"><span class="swatch part-{part}"></span>{part}</th>' for part in shown)
    rows = []
    for variant, split in splits:
        bar = "".join(f'<span class="part-{part}" style="width:{100 * split[part] / longest:.2f}%"></span>' for part in shown)
        cells = "".join(f"<td>{duration(split[part])}</td>" for part in shown)
        name = f'<th scope="row">{key(variant.look)}{escape(variant.label)}</th>'
        rows.append(f'<tr>{name}<td class="bar"><div class="stack" aria-hidden="true">{bar}</div></td>{cells}</tr>')
    head = f'<tr><th scope="col">optimizer</th><th scope="col"><span class="visually-hidden">bar</span></th>{titles}</tr>'
    return (
        f'<h3>Time of an epoch</h3><div class="scroll"><table class="split"><thead>{head}</thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="footnote">Means over epochs and runs.</p>'
    )


def fold_outs(section: Section) -> str:
    """Settings, environment and the list of runs."""
    settings = settings_table(section.variants)
    environments: dict[str, list[str]] = {}
    for run in section.runs:
        environments.setdefault(json.dumps(run.environment, sort_keys=True), []).append(run.folder.name)
    machines = "".join(
        f"<h3>{count(len(names), 'run')}</h3>{values_table(json.loads(text))}" for text, names in environments.items()
    )
    rows = "".join(
        f"<tr><td>{escape(variant.label)}</td><td>{run.config['seed']}</td>"
        f'<td class="status-{run.status}">{run.status}</td><td>{len(run.rows)} of {escape(run.config["epochs"])}</td>'
        f"<td>{accuracy_words(run)}</td><td><code>{escape(run.folder.name)}</code></td></tr>"
        for variant in section.variants
        for run in variant.runs
    )
    titles = "".join(f"<th>{title}</th>" for title in ("optimizer", "seed", "status", "epochs", "accuracy [%]", "folder"))
    runs = f'<div class="scroll"><table class="plain"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>'
    return "".join(
        f"<details><summary>{title}</summary>{body}</details>"
        for title, body in (("Settings", settings), ("Environment", machines), ("Runs", runs))
    )


def settings_table(variants: Sequence[Variant]) -> str:
    """A row per setting, a column per variant. What makes them one section is left out: it stands above."""
    configs = [flattened(variant.runs[0].config) for variant in variants]
    names = [
        name for name in dict.fromkeys(name for c in configs for name in c) if name not in {"seed", "optimizer", *PROTOCOL}
    ]
    if not names:
        return '<p class="soft">nothing recorded</p>'
    head = "".join(f'<th scope="col">{escape(variant.label)}</th>' for variant in variants)
    rows = (
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{f'<code>{escape(config[name])}</code>' if name in config else ''}</td>" for config in configs)
        + "</tr>"
        for name in names
    )
    head = f"<thead><tr><th></th>{head}</tr></thead>"
    return f'<div class="scroll"><table class="plain">{head}<tbody>{"".join(rows)}</tbody></table></div>'


def accuracy_words(run: Record) -> str:
    value = run.series("test_accuracy")[-1] if run.rows else None
    return "-" if value is None else fraction(value, 2)


def values_table(values: dict[str, Any]) -> str:
    if not values:
        return '<p class="soft">nothing recorded</p>'
    rows = "".join(f"<tr><td>{escape(name)}</td><td><code>{escape(value)}</code></td></tr>" for name, value in values.items())
    return f'<table class="plain"><tbody>{rows}</tbody></table>'
