"""The tables of the league, for :mod:`arturo_lab.report.writers`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from arturo_lab.league.ablation import ABLATIONS, FULL
from arturo_lab.league.field import DEVELOPED, OURS, REFERENCE, League, label
from arturo_lab.league.results import Outcome, reached, standings, variant, versus
from arturo_lab.league.rows import Rows, busy, looks
from arturo_lab.league.stages import winner
from arturo_lab.league.valley import REFERENCE_RATES
from arturo_lab.optimizers.settings import Settings
from arturo_lab.report.comparison import paired
from arturo_lab.report.evidence import Estimate
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.palette import style
from arturo_lab.report.ranking import leads, rank
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.table import Cell, Column, Row, Table, with_best
from arturo_lab.report.tables import difference_cell
from arturo_lab.report.wording import duration
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS

HEADLINE = f"{label(OURS)} untouched against AdamW at its best"
DIVERGED = "A diverged run has no number and counts as worse than any other."


def spread(estimate: Estimate, metric: ShownMetric) -> str:
    """Mean and standard deviation over the seeds.

    Example:
        >>> spread(Estimate.of([0.90, 0.91, 0.92]), ShownMetric())
        '91.00 ± 1.00'
    """
    if estimate.error is None:
        return metric.text(estimate.mean)
    deviation = metric.scale * estimate.error * estimate.n**0.5
    return f"{metric.text(estimate.mean)} ± {deviation:.{metric.digits(estimate.mean)}f}"


def how_partial(entry: Variant, seeds: int) -> str:
    """What is missing or lost, in few words; empty for a whole result."""
    lost = len(entry.with_status("diverged"))
    words = [f"{lost} of {seeds} diverged"] if lost else []
    if len(entry.over) < seeds:
        words.append(f"partial: {len(entry.over)} of {seeds} seeds")
    return ", ".join(words)


def result_cell(entry: Variant | None, seeds: int, best: bool = False) -> Cell:
    if entry is None:
        return Cell("-", detail="missing")
    detail, estimate = how_partial(entry, seeds), entry.estimate
    if entry.with_status("diverged"):
        rest = "" if estimate is None else f"; the others {entry.metric.text(estimate.mean)}"
        return Cell("diverged", detail=f"{detail}{rest}")
    assert estimate is not None  # a run that is over has finished with a number or diverged
    return Cell(spread(estimate, entry.metric), estimate.mean, detail, best)


def named(optimizer: str) -> Cell:
    return Cell(label(optimizer), label(optimizer), look=style(optimizer), fields={"optimizer": optimizer})


def headline_table(of: Outcome, costs: Mapping[str, float]) -> Table:
    """A row for each task: AdamW at its best, AdaArturo as it comes, and who is ahead.

    Args:
        of: the runs of both.
        costs: of a training step with AdaArturo, in those with fused AdamW, by task.
    """
    columns = (
        Column("task", align="left"),
        Column(f"{label(REFERENCE)}, best", key="reference"),
        Column(f"{label(OURS)}, untouched", key="ours"),
        Column("difference"),
        Column("steps to AdamW's result", key="steps_to_reference"),
        Column("time to it", key="time_to_reference"),
        Column("AdamW's own steps to it", key="reference_steps", secondary=True),
        Column("metric", align="left", secondary=True),
        Column("steps", secondary=True),
        Column("AdamW's values", key="settings", align="left", secondary=True),
    )
    seeds, rows = of.league.seeds, []
    for task in of.league.tasks:
        section, steps = of.section(task), of.steps[task] * TASKS[task].epochs
        theirs, ours = (result_cell(variant(section, name), seeds, ahead(section, name, seeds)) for name in (REFERENCE, OURS))
        what = Cell(TASKS[task].metric.heading), Cell(f"{steps:,}", steps), settings_cell(variant(section, REFERENCE))
        arrivals = steps_cell(of, task, OURS), time_cell(section, costs.get(task)), steps_cell(of, task, REFERENCE)
        mark = " *" if task in DEVELOPED else ""
        rows.append((Cell(f"{task}{mark}", task), theirs, ours, versus_cell(section), *arrivals, *what))
    notes = [
        f"Test set, after the last epoch: mean ± standard deviation over {seeds} seeds. {label(REFERENCE)} was "
        f"tuned on each task in two ways, {of.league.trials} short trials of lr, betas and decay, and "
        f"{len(REFERENCE_RATES)} lr from {REFERENCE_RATES[0]:g} to {REFERENCE_RATES[-1]:g} at full length; what is better on "
        f"validation data stands here. {label(OURS)} has its defaults everywhere; both train for the same number of steps. The "
        f"difference is taken seed by seed, plus is better for {label(OURS)}, ± half of its 95 % t-interval. Bold: better with "
        f"each of the {seeds} seeds. {DIVERGED} Steps to AdamW's result: the first epoch at which {label(OURS)}'s validation "
        f"metric reaches {label(REFERENCE)}'s final one (mean over its seeds), as a share of all steps; median over the seeds, "
        "with their number if some never get there. A run that overfits may reach the target and end worse. Time to it: that "
        "share times what a training step costs relative to one with fused AdamW, on one thread (training_step.md). AdamW's "
        "own steps: when its curves first get there.",
        *looked(of.sections),
        f"Tasks marked with an asterisk: {label(OURS)}'s constants were chosen on their validation folds, which favours it. "
        "Test results of earlier forms were also seen before the league, three or four times on most tasks; once, on the byte "
        "transformer, the small ResNet and digits at batch size 1, they were the reason for another search on validation data "
        "(experiments/LOG.md).",
    ]
    if of.missing:
        notes.append(f"Partial: {of.missing} runs of this table are still to come.")
    if of.searching:
        waiting = ", ".join(task for task in of.league.tasks if task in of.searching)
        notes.append(f"Partial: one of {label(REFERENCE)}'s two searches is not over on {waiting}.")
    return Table("untouched-against-best", HEADLINE, columns, tuple(rows), tuple(notes))


def looked(sections: Sequence[Section]) -> list[str]:
    """How often the test set was, where more than once: every run looks once, but its method may have changed since."""
    often = {
        f"{entry.label} on {section.task}": most
        for section in sections
        for entry in section.variants
        if (most := max([looks(run) for run in entry.runs], default=1)) > 1
    }
    if not often:
        return []
    listed = "; ".join(f"{name} {count}" for name, count in often.items())
    return [f"Every run is evaluated on the test set once. Repeated runs were evaluated again; in all: {listed} times."]


def steps_cell(of: Outcome, task: str, optimizer: str) -> Cell:
    """When an optimizer is as good as AdamW will be."""
    there = reached(of.section(task), optimizer)
    if there is None:
        return Cell("-")
    some = f"{there.seeds} of {there.of} seeds" if there.seeds < there.of else ""
    if there.epochs == math.inf:
        return Cell("not reached", detail=some if there.seeds else "")
    steps = round(there.epochs * of.steps[task])
    return Cell(f"{steps:,}", steps, ", ".join(filter(None, (f"{there.epochs / TASKS[task].epochs:.0%}", some))))


def time_cell(section: Section | None, cost: float | None) -> Cell:
    """Of AdaArturo to AdamW's result, as a share of all of AdamW's."""
    there = reached(section, OURS)
    if section is None or there is None or cost is None:
        return Cell("-")
    share = cost * there.epochs / TASKS[section.task].epochs
    return Cell("not reached") if share == math.inf else Cell(f"{share:.0%}", share)


def ahead(section: Section | None, optimizer: str, seeds: int) -> bool:
    """Whether AdaArturo, or AdamW, is better than the other with every seed of the league."""
    difference = versus(section)
    return difference is not None and (difference.won if optimizer == OURS else difference.lost) == seeds


def losses_table(of: Outcome) -> Table:
    """A row for each task: AdaArturo, its rank, who is ahead."""
    columns = (
        Column("task", align="left"),
        Column(label(OURS), key="ours"),
        Column("rank"),
        Column("best", align="left"),
        Column("best result"),
        Column(f"{label(OURS)} against {label(REFERENCE)}", key="difference", secondary=True),
    )
    rows = tuple((Cell(task, task), *standing_cells(of.section(task), of.league)) for task in of.league.tasks)
    note = (
        f"Test set, after the last epoch, mean ± standard deviation over {of.league.seeds} seeds; accuracy in % where "
        f"given, loss otherwise. The rank of {label(OURS)} is among all optimizers that have a result on the task, by the "
        "seeds that all of these have; bold where it is first of all. The difference is taken seed by seed, plus is better, "
        f"with half of its 95 % t-interval. {DIVERGED}"
    )
    return Table(f"{of.stage}-losses", f"{of.stage.capitalize()}: where {label(OURS)} stands", columns, rows, (note,))


def standing_cells(section: Section | None, league: League) -> list[Cell]:
    ours = variant(section, OURS)
    if section is None or ours is None:
        return [Cell("-", detail="missing"), *(Cell("-") for _ in range(4))]
    ranked = standings(section)
    mine = next(entry for entry in ranked if entry.optimizer == OURS)
    place, first = rank(mine, ranked), leads(mine, ranked) and len(ranked) == len(league.optimizers)
    best = [entry.optimizer for entry in ranked if entry.standing == ranked[0].standing]
    return [
        result_cell(ours, league.seeds, first),
        Cell(f"{place:g} of {len(ranked)}", place, best=first),
        Cell(", ".join(map(label, best))),
        result_cell(variant(section, best[0]), league.seeds),
        versus_cell(section),
    ]


def versus_cell(section: Section | None) -> Cell:
    """Without a p: so few seeds carry none."""
    difference = versus(section)
    return (
        Cell("-") if section is None or difference is None else replace(difference_cell(difference, section.metric), detail="")
    )


def results_table(of: Outcome) -> Table:
    """Every mean: a row for each optimizer, best mean rank first, a column for each task."""
    metrics = {section.task: section.metric for section in of.sections}
    columns = (
        Column("optimizer", key="label", align="left"),
        *(Column(task, unit="%" if task in metrics and metrics[task].unit == "%" else "") for task in of.league.tasks),
    )
    rows: list[Row] = []
    for name in of.present:
        cells = []
        for task in of.league.tasks:
            section = of.section(task)
            entry = variant(section, name)
            best = section is not None and section in of.complete and entry in section.ranked_best
            cells.append(result_cell(entry, of.league.seeds, best))
        rows.append((named(name), *cells))
    notes = [
        f"Test set, after the last epoch: mean ± standard deviation over {of.league.seeds} seeds; accuracy "
        f"in % where given, loss otherwise. The best of each task is bold once everybody has a result. {DIVERGED}",
        *looked(of.sections),
    ]
    if of.missing:
        nothing = ", ".join(label(name) for name in of.league.optimizers if name not in of.present)
        notes.append(
            f"Partial: {of.missing} runs of this table are still to come{f', all of {nothing} among them' if nothing else ''}."
        )
    return Table(of.stage, f"{of.stage.capitalize()}: final quality", columns, tuple(rows), tuple(notes))


def times_table(of: Outcome) -> Table:
    """Steps and seconds to AdamW's tuned result: a row for each optimizer, a column for each task."""
    columns = (
        Column("optimizer", key="label", align="left"),
        *(Column(task, key=f"{task}_steps", better="lower") for task in of.league.tasks),
    )
    rows: list[Row] = []
    for name in of.present:
        cells = [arrival_cell(of, task, name) for task in of.league.tasks]
        rows.append((named(name), *cells))
    aims = "; ".join(f"{section.task} {section.metric.text(section.aim)}" for section in of.sections if section.aim is not None)
    notes = [
        f"Steps, with seconds of training, until the validation metric first reaches that of the tuned {label(REFERENCE)} "
        f"after its last epoch, by the better of its two searches ({aims}). Measured after every epoch; median over the seeds, "
        "given if more than half of them get there."
    ]
    if of.busy:
        notes.append(
            "Seconds are CPU seconds of the single-threaded process, on a machine with other work: the same run took up to 1.8 "
            f"times as long at other times. {label(REFERENCE)} is torch's default on CPUs, not the fused one; {label(OURS)} is "
            "in C++, SOAP and Muon are in Python. Steps are the same everywhere."
        )
    title = f"{of.stage.capitalize()}: steps and time to {label(REFERENCE)}'s tuned result"
    return Table(f"{of.stage}-times", title, columns, with_best(columns, rows), tuple(notes))


def arrival_cell(of: Outcome, task: str, optimizer: str) -> Cell:
    section = of.section(task)
    entry, there = variant(section, optimizer), reached(section, optimizer)
    if entry is None or there is None:
        return Cell("-", detail="missing")
    partial = how_partial(entry, of.league.seeds)
    if there.epochs == math.inf:
        return Cell("not reached", detail=partial)
    steps = round(there.epochs * of.steps[task])
    detail = f"{duration(there.seconds)}{', ' if partial else ''}{partial}"
    fields = {f"{task}_seconds": there.seconds, f"{task}_busy": any(busy(run) for run in entry.runs)}
    return Cell(f"{steps:,}", steps, detail, fields=fields)


def tasks_table(league: League) -> Table:
    """What the tasks are."""
    columns = (
        Column("task", align="left"),
        Column("what", align="left"),
        Column("judged by", align="left"),
        Column("epochs"),
        Column("batch"),
        Column("of a trial", key="trial_epochs", unit="epochs"),
    )
    rows = []
    for name in league.tasks:
        task = TASKS[name]
        numbers = (task.epochs, task.batch_size, league.trial_epochs(name))
        judged = f"{task.metric.heading}, {task.metric.better} is better"
        rows.append((Cell(name, name), Cell(task.title), Cell(judged), *(Cell(str(n), n) for n in numbers)))
    return Table("tasks", "The tasks", columns, tuple(rows))


def settings_table(league: League, rows: Rows) -> Table:
    """What each optimizer's trials chose."""
    columns = (
        Column("optimizer", key="label", align="left"),
        *(Column(task, align="left", wrap=True) for task in league.tasks),
    )
    table: list[Row] = []
    for name in league.optimizers:
        cells = []
        for task in league.tasks:
            best = winner(league, rows, task, name)
            cells.append(Cell("-", detail="missing") if best is None else Cell(differing(task, name, best[1])))
        table.append((named(name), *cells))
    note = f"The best of {league.trials} trials on validation data, each trained for {league.fidelity:.0%} of the epochs."
    return Table("settings", "Chosen values", columns, tuple(table), (note,))


def settings_cell(entry: Variant | None) -> Cell:
    config = None if entry is None else entry.runs[0].config
    return Cell("-" if config is None else differing(config["task"], config["optimizer"], config["settings"]))


def differing(task: str, optimizer: str, settings: Settings) -> str:
    """The values that are not the defaults.

    Example:
        >>> differing("digits-mlp", "adamw-warmup", {"lr": 0.01}), differing("digits-mlp", "adamw-warmup", {"lr": 0.001})
        ('lr 0.01', 'untouched')
    """
    defaults = RunConfig.for_task(task, optimizer).settings
    words = [f"{key} {shown(value)}" for key, value in settings.items() if value is not None and value != defaults.get(key)]
    return ", ".join(words) or "untouched"


def shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(shown(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def ablation_table(league: League, sections: Sequence[Section]) -> Table:
    """A row for each part that is off, AdaArturo and its twin first; a column for each task."""
    names = {v.optimizer for section in sections for v in section.variants}
    order = [name for name in (OURS, *ABLATIONS) if name in names]
    columns = (
        Column("AdaArturo", key="label", align="left"),
        *(
            Column(s.task, unit="%" if s.metric.unit == "%" else "", better="higher" if s.metric.higher else "lower")
            for s in sections
        ),
    )
    rows: list[Row] = []
    for name in order:
        cells = []
        for section in sections:
            entry, whole = variant(section, name), variant(section, FULL)
            cell = result_cell(entry, league.seeds)
            if entry is not None and whole is not None and entry is not whole:
                gap = difference_cell(paired(entry, whole)[0], section.metric)
                text = gap.text if gap.value is not None else ""
                cell = Cell(cell.text, cell.value, ", ".join(filter(None, (text, cell.detail))), fields={})
            cells.append(cell)
        own = "as it is" if name == OURS else label(name)
        rows.append((Cell(own, own, fields={"optimizer": name}), *cells))
    note = (
        f"Validation data, after the last epoch, mean ± standard deviation over {league.seeds} seeds. Below, the difference to "
        "the twin in plain torch with nothing off, seed by seed, plus is better, ± half of its 95 % t-interval; the twin "
        f"itself should be as good as AdaArturo as it is. {DIVERGED}"
    )
    return Table("ablation", "AdaArturo with one part off", columns, tuple(rows), (note,))
