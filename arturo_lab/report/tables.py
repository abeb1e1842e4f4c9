"""The tables of a report on one task: the comparison, all pairs, single seeds, where the time goes, how it was run."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from arturo_lab.report.comparison import Comparison, Difference
from arturo_lab.report.evidence import median_arrival
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.sections import PARTS, PROTOCOL, Section, Variant, flattened
from arturo_lab.report.table import Cell, Column, Row, Table, number, with_best, words
from arturo_lab.report.wording import (
    count,
    duration,
    duration_range,
    estimate_fields,
    mean_with_interval,
    p_value,
    protocol_words,
    signed,
)
from arturo_lab.runs.records import Record

TIMES = (
    "Times are of training, without the test: of an epoch the median, below it the range of the middle 80 % of all "
    "epochs; to the target the median over all runs, given if more than half of them reach it, and how many do."
)


def named(variant: Variant) -> Cell:
    """The first cell of a row."""
    fields = {"optimizer": variant.optimizer, "label": variant.label}
    return Cell(variant.label, variant.label, look=variant.look, fields=fields)


def direction(metric: ShownMetric) -> Any:
    return "higher" if metric.higher else "lower"


def comparison_table(section: Section, comparison: Comparison, target: float | None = None) -> Table:
    """One row for each variant: its result, how far it is from the reference, and how fast it gets to the target."""
    metric, aim = section.metric, section.target if target is None else target
    reference = comparison.reference
    with_loss = metric.name != "test_loss" and any("test_loss" in run.result for run in section.runs)
    to = "-" if aim is None else metric.with_unit(aim)
    columns = [
        Column("optimizer", key="label", align="left"),
        Column(metric.title, key=metric.name, unit=metric.unit, better=direction(metric)),
    ]
    if reference is not None:
        columns.append(Column(f"against {reference.label}", key="difference", unit=metric.difference_unit))
    if with_loss:
        columns.append(Column("test loss", better="lower", secondary=True))
    columns += [
        Column("runs"),
        Column("time per epoch", key="seconds_per_epoch"),
        Column(f"epochs to {to}", key="epochs_to_target"),
    ]
    rows = []
    for variant in section.variants:
        row = [named(variant), result_cell(variant, variant is section.best)]
        if reference is not None:
            row.append(Cell("reference") if variant is reference else difference_cell(comparison.of(variant), metric))
        if with_loss:
            row.append(loss_cell(variant))
        rows.append((*row, runs_cell(variant), epoch_cell(variant), target_cell(variant, aim)))
    notes = [interval_words(section), *comparison.notes(), TIMES]
    if any(variant.with_status("diverged") for variant in section.variants):
        notes.insert(
            1,
            "Diverged runs are left out of means; in orders and tests they count as worse than any finished run.",
        )
    title = f"{section.title}: {protocol_words(section.protocol)}"
    return Table("comparison", title, tuple(columns), tuple(rows), tuple(note for note in notes if note))


def interval_words(section: Section) -> str:
    n = max((len(variant.values) for variant in section.variants), default=0)
    if n == 0:
        return "No run has finished yet."
    return "One seed: no spread and no test." if n == 1 else f"Mean ± half of its 95 % t-interval, over up to {n} seeds."


def result_cell(variant: Variant, best: bool) -> Cell:
    """The mean with its interval; a share of diverged runs is said right below it."""
    diverged = len(variant.with_status("diverged"))
    detail = f"{diverged} of {len(variant.over)} diverged" if diverged else ""
    estimate = variant.estimate
    fields: dict[str, Any] = {f"{variant.metric.name}_by_seed": {str(seed): value for seed, value in variant.values.items()}}
    if estimate is None:
        return Cell("-", detail=detail, fields=fields)
    fields |= {f"{variant.metric.name}_{key}": value for key, value in estimate_fields(estimate).items() if key != "mean"}
    return Cell(mean_with_interval(estimate, variant.metric), estimate.mean, detail, best, fields | {"best": best})


def difference_cell(difference: Difference | None, metric: ShownMetric) -> Cell:
    """Plus is better than the reference."""
    if difference is None or difference.pairs == 0:
        return Cell("-", detail="no shared seed")
    fields = {"p": difference.p, "pairs": difference.pairs, "won": difference.won, "lost": difference.lost}
    p = p_value(difference.p, difference.pairs)
    if difference.estimate is None:
        return Cell(f"{difference.won} won, {difference.lost} lost", detail=p, fields=fields)
    estimate = difference.estimate
    digits = difference_digits(difference, metric)
    text = signed(estimate.mean, metric, digits)
    if estimate.half_width is not None:
        text += f" ± {metric.scale * estimate.half_width:.{digits}f}"
        fields |= {
            "difference_low": estimate.mean - estimate.half_width,
            "difference_high": estimate.mean + estimate.half_width,
        }
    return Cell(text, estimate.mean, p, fields=fields)


def difference_digits(difference: Difference, metric: ShownMetric) -> int:
    """Those of the results that differ: a small difference has no more decimals than they have."""
    means = [of.estimate.mean for of in (difference.one, difference.other) if of.estimate is not None]
    return metric.digits(max(means, key=abs, default=0.0))


def loss_cell(variant: Variant) -> Cell:
    losses = [run.result.get("test_loss") for run in variant.finished]
    known = [float(loss) for loss in losses if isinstance(loss, int | float)]
    mean = statistics.fmean(known) if known and len(known) == len(losses) else None
    return number(mean, "" if mean is None else f"{mean:.4f}")


def runs_cell(variant: Variant) -> Cell:
    states = {status: len(variant.with_status(status)) for status in ("finished", "diverged", "unfinished")}
    lost = ", ".join(f"{n} {status}" for status, n in states.items() if n and status != "finished")
    return Cell(str(states["finished"]), states["finished"], lost, fields=states)


def epoch_cell(variant: Variant) -> Cell:
    seconds = sorted(s for run in variant.runs for s in run.series("seconds") if s is not None)
    if not seconds:
        return Cell("-")
    low, high = seconds[round(0.1 * (len(seconds) - 1))], seconds[round(0.9 * (len(seconds) - 1))]
    median = statistics.median(seconds)
    return Cell(
        duration(median),
        median,
        duration_range(low, high),
        fields={"seconds_per_epoch_low": low, "seconds_per_epoch_high": high},
    )


def target_cell(variant: Variant, target: float | None) -> Cell:
    if target is None:
        return Cell("-")
    epochs, seconds = (variant.arrivals(target, clock) for clock in ("epochs", "seconds"))
    reached, half, time = sum(arrival.reached for arrival in epochs), median_arrival(epochs), median_arrival(seconds)
    fields = {"target": target, "seconds_to_target": time, "reached_target": reached}
    arrived = f"{reached} of {len(variant.runs)}"
    if half is None or time is None:
        return Cell("-", detail=arrived, fields=fields)
    return Cell(f"{half:g}", half, f"{duration(time)}, {arrived}", fields=fields)


def pairs_table(section: Section, comparison: Comparison) -> Table:
    """One row for each pair, the better one first."""
    metric = section.metric
    columns = (
        Column("ahead", align="left"),
        Column("behind", align="left"),
        Column("difference", unit=metric.difference_unit),
        Column("p", better=None),
        Column("shared seeds", key="pairs"),
        Column("won"),
        Column("lost"),
    )
    rows: list[Row] = []
    for difference in comparison.differences:
        turn = difference.won < difference.lost if difference.estimate is None else difference.estimate.mean < 0
        one, other = (difference.other, difference.one) if turn else (difference.one, difference.other)
        won, lost = (difference.lost, difference.won) if turn else (difference.won, difference.lost)
        estimate = difference.estimate
        if estimate is None:
            gap = Cell("-")
        else:
            width = estimate.half_width
            digits = difference_digits(difference, metric)
            text = f"{metric.scale * abs(estimate.mean):.{digits}f}"
            text += "" if width is None else f" ± {metric.scale * width:.{digits}f}"
            gap = Cell(text, abs(estimate.mean), fields={"half_width": width})
        p = number(difference.p, "-" if difference.p is None else p_value(difference.p, difference.pairs).removeprefix("p = "))
        rows.append((words(one.label), words(other.label), gap, p, number(difference.pairs, str(difference.pairs)),
                     number(won, str(won)), number(lost, str(lost))))  # fmt: skip
    return Table("pairs", f"{section.title}: all pairs", columns, tuple(rows), tuple(comparison.notes()))


def seeds_table(section: Section) -> Table:
    """Every single result: a row for each variant, a column for each seed."""
    metric = section.metric
    columns = (
        Column("optimizer", key="label", align="left"),
        *(Column(f"seed {seed}", better=direction(metric)) for seed in section.seeds),
    )
    rows = []
    for variant in section.variants:
        status = {run.config["seed"]: run.status for run in variant.runs}
        cells = [
            Cell(metric.text(variant.values[seed]), variant.values[seed])
            if seed in variant.values
            else Cell(status.get(seed, "-"))
            for seed in section.seeds
        ]
        rows.append((named(variant), *cells))
    return Table("seeds", f"{section.title}: {metric.heading} by seed", columns, with_best(columns, rows))


def times_table(section: Section) -> Table | None:
    """Where an epoch's time goes, as bars of one scale; None if the runs do not say."""
    splits = [(variant, split) for variant in section.variants if (split := variant.time_split)]
    longest = max((sum(split.values()) for _, split in splits), default=0.0)
    if longest <= 0:
        return None
    shown = [part for part in PARTS if any(split[part] >= 0.005 * longest for _, split in splits)]
    columns = (
        Column("optimizer", key="label", align="left"),
        Column("", key="bar", graphic=True),
        *(Column(part) for part in shown),
    )
    rows = []
    for variant, split in splits:
        bar = Cell("", bar={part: 100 * split[part] / longest for part in shown})
        rows.append((named(variant), bar, *(Cell(duration(split[part]), split[part]) for part in shown)))
    return Table("times", f"{section.title}: time of an epoch", columns, tuple(rows), ("Means over epochs and runs.",))


def settings_table(section: Section) -> Table:
    """A row for each setting, a column for each variant. What makes them one section is left out: it stands above."""
    configs = [flattened(variant.runs[0].config) for variant in section.variants]
    names = [n for n in dict.fromkeys(n for c in configs for n in c) if n not in {"seed", "optimizer", *PROTOCOL}]
    columns = (
        Column("setting", align="left"),
        *(Column(variant.label, align="left", wrap=True) for variant in section.variants),
    )
    rows = tuple(
        (words(name), *(Cell(str(config[name])) if name in config else Cell("") for config in configs)) for name in names
    )
    return Table("settings", f"{section.title}: settings", columns, rows)


CHANGES_OFTEN = ("revision", "resumed_with")  # listed in one cell, not in a column for each


def environment_table(runs: Sequence[Record]) -> Table:
    """What the runs ran on: a row for each property, a column for each machine and set of versions."""
    groups: dict[str, list[Record]] = {}
    for run in runs:
        lasting = {name: value for name, value in run.environment.items() if name not in CHANGES_OFTEN}
        groups.setdefault(json.dumps(lasting, sort_keys=True), []).append(run)
    names = list(dict.fromkeys(name for run in runs for name in run.environment))
    names.sort(key=lambda name: name in CHANGES_OFTEN)
    columns = (
        Column("property", align="left"),
        *(
            Column(count(len(group), "run"), key=f"environment_{i}", align="left", wrap=True)
            for i, group in enumerate(groups.values())
        ),
    )
    rows = tuple((words(name), *(Cell(values_of(name, group)) for group in groups.values())) for name in names)
    return Table("environment", "Environment", columns, rows)


def values_of(name: str, runs: Sequence[Record]) -> str:
    """The values of a property, with the number of runs of each where there are several."""
    counts = Counter(str(run.environment[name]) for run in runs if name in run.environment)
    if len(counts) == 1 and counts.total() == len(runs):
        return next(iter(counts))
    return ", ".join(f"{value} ({count(n, 'run')})" for value, n in counts.items())


def runs_table(section: Section) -> Table:
    """Every run and its folder."""
    columns = (
        Column("optimizer", align="left"),
        Column("seed"),
        Column("status", align="left"),
        Column("epochs"),
        Column(section.metric.title, key=section.metric.name, unit=section.metric.unit),
        Column("run", align="left"),
    )
    rows = []
    for variant in section.variants:
        for run in variant.runs:
            last = run.series(section.metric.name)[-1] if run.rows else None
            rows.append(
                (
                    words(variant.label),
                    number(run.config["seed"], str(run.config["seed"])),
                    words(run.status),
                    number(len(run.rows), f"{len(run.rows)} of {run.config['epochs']}"),
                    number(last, "" if last is None else section.metric.text(last)),
                    words(run.folder.name),
                )
            )
    return Table("runs", f"{section.title}: runs", columns, tuple(rows))
