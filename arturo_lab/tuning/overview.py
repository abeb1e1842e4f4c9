"""Several searches side by side: tables, and the figures that compare optimizers on one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.config_file import ConfigFile, read_config_file
from arturo_lab.report.document import Document, Part
from arturo_lab.report.palette import style
from arturo_lab.report.plots import file_names
from arturo_lab.report.table import Cell, Column, Row, Table, with_best, words
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.metrics import Metric
from arturo_lab.tuning.figures import best_after_k, by_study, canvas, finish, possible
from arturo_lab.tuning.outcome import TrialRow, read_rows, winner

BUDGET = ("protocol", "studies", "trials", "folds", "seeds", "epochs", "batch_size", "subset")
NEEDED = ("protocol", "folds", "seeds", "studies", "trials", "pruned", "diverged", "params", "validation", "edges", "test")


@dataclass(frozen=True)
class SearchResult:
    """A search that is over."""

    config: ConfigFile
    rows: list[TrialRow]

    @property
    def task(self) -> str:
        return str(self.config.task)

    @property
    def own(self) -> list[TrialRow]:
        return [row for row in self.rows if not row.crossed]

    def budget(self, key: str) -> object:
        return getattr(self.config, key) if hasattr(self.config, key) else self.config.search[key]


def read_search(file: Path) -> SearchResult:
    config, trials = read_config_file(file), file.with_suffix("") / "trials.jsonl"
    lacking = [key for key in NEEDED if key not in config.search]
    if lacking or not isinstance(config.task, str) or not trials.exists():
        raise ConfigError(f"FILE: {file} is not what `arturo tune` wrote, or {trials} is missing")
    try:
        _ = TASKS[config.task], OPTIMIZERS[config.optimizer]
    except ConfigError as error:
        raise ConfigError(f"FILE: {file} names what is not there: {error}") from error
    return SearchResult(config, read_rows(trials))


def check_alike(group: Sequence[SearchResult]) -> None:
    """Searches of one task stand in one table: each optimizer once, the same budget for all."""
    first = group[0]
    for i, search in enumerate(group):
        optimizer = search.config.optimizer
        if optimizer in [other.config.optimizer for other in group[:i]]:
            raise ConfigError(f"FILE: two searches of {optimizer} on {search.task}; name one of them")
        for key in BUDGET:
            ours, theirs = search.budget(key), first.budget(key)
            if ours != theirs:
                raise ConfigError(
                    f"FILE: the searches on {search.task} cannot be compared: {key} is {theirs!r} for "
                    f"{first.config.optimizer} and {ours!r} for {optimizer}; report them separately"
                )


def overview(searches: Sequence[SearchResult]) -> Document:
    """The searches by task: tables, and figures of what k trials were worth."""
    parts: list[Part] = []
    tasks = list(dict.fromkeys(search.task for search in searches))
    for task, stem in zip(tasks, file_names(tasks), strict=True):
        group = [search for search in searches if search.task == task]
        check_alike(group)
        figures = {"best-after-k": best_after_k({search.config.optimizer: search.own for search in group}, TASKS[task].metric)}
        if len(by_study(group[0].own)) > 1:
            figures["studies"] = studies_figure(group)
        for figure in figures.values():
            figure.suptitle(f"{TASKS[task].title}: {budget(group[0])}", fontsize=10)
        first, *rest = figures.items()
        parts.append(Part(TASKS[task].title, (about(group),), winners_table(group), (), first[1], f"{stem}-{first[0]}"))
        parts += [Part(f"{TASKS[task].title}: {name}", figure=figure, figure_name=f"{stem}-{name}") for name, figure in rest]
        if any(search.config.search["crossed"] for search in group):
            parts.append(Part(f"{TASKS[task].title}: values that won elsewhere", (), cross_table(group)))
    commands = "\n".join(search.config.search["command"] for search in searches)
    return Document("tuning", "What the searches found", commands, tuple(parts))


def budget(search: SearchResult) -> str:
    """What each configuration was judged by."""
    how, config = search.config.search, search.config
    seeds = f" x {how['seeds']} seeds" if how["seeds"] > 1 else ""
    images = f", {config.subset:,} images" if config.subset else ""
    return f"{how['folds']} folds{seeds}, {config.epochs} epochs{images}"


def about(group: Sequence[SearchResult]) -> str:
    how = group[0].config.search
    trials = how["trials"] // how["studies"]
    studies = f"{how['studies']} independent studies of " if how["studies"] > 1 else ""
    return (
        f"Protocol {how['protocol']}: {studies}{trials} trials for each optimizer, {budget(group[0])}. Validation: the "
        "winner's mean over folds and seeds ± doubled standard error, which is too high: it is the best of many. "
        "Test: the winner trained with no fold held out, mean over seeds ± doubled standard error; the search did not "
        "use the test set."
    )


def winners_table(group: Sequence[SearchResult]) -> Table:
    """A row for each optimizer."""
    several = group[0].config.search["studies"] > 1
    metric = TASKS[group[0].task].metric
    unit = "%" if metric.percent else metric.unit or metric.name
    columns = [Column("optimizer", key="label", align="left"), Column("validation", unit=unit, better=metric.better)]
    columns += [Column("best of each study", unit=unit)] if several else []
    columns += [
        Column("test", unit=unit, better=metric.better),
        Column("pruned"),
        Column("diverged"),
        Column("values", align="left", wrap=True, secondary=True),
        Column("at an edge", align="left"),
    ]
    rows: list[Row] = []
    for search in group:
        how = search.config.search
        best = [metric.of_score(score) for score in (how["between_studies"] or {"best": []})["best"]] if several else []
        each = f"{', '.join(shown(b, metric) for b in best)} (sd {shown(float(np.std(best, ddof=1)), metric)})" if best else "-"
        tested = how["test"]
        of_another = tested and tested.get("params", how["params"]) != how["params"]
        values = ", ".join(f"{name} {value:.3g}" for name, value in how["params"].items())
        rows.append(
            (
                Cell(OPTIMIZERS[search.config.optimizer].label, fields={"optimizer": search.config.optimizer}),
                estimate_cell(how["validation"], metric),
                *([Cell(each, fields={"studies": best})] if several else []),
                Cell("of an earlier winner") if of_another else estimate_cell(tested, metric) if tested else Cell("not yet"),
                Cell(f"{how['pruned']} of {how['trials']}", how["pruned"]),
                Cell(str(how["diverged"]), how["diverged"]),
                Cell(values, fields={"params": how["params"]}),
                words(", ".join(line.split()[0] for line in how["edges"]) or "no"),
            )
        )
    return Table("tuning", TASKS[group[0].task].title, tuple(columns), with_best(columns, rows))


def cross_table(group: Sequence[SearchResult]) -> Table:
    """Every winner on this task, whichever task it won on."""
    metric = TASKS[group[0].task].metric
    columns = (
        Column("optimizer", align="left"),
        Column("values of", align="left"),
        Column("validation", unit="%" if metric.percent else metric.name, better=metric.better),
    )
    rows: list[Row] = []
    for search in group:
        label = OPTIMIZERS[search.config.optimizer].label
        own = winner(search.own)
        score = Cell("diverged") if own is None else value_cell(own.score, metric)
        rows.append((words(label), words(f"{search.task} (its own)"), score))
        for crossed in search.config.search["crossed"]:
            given_up = "" if crossed["state"] == "complete" else f" ({crossed['state']})"
            rows.append((words(label), words(crossed["from"]), value_cell(crossed["score"], metric, given_up)))
    return Table("crossed", "Cross-evaluation", columns, tuple(rows))


def studies_figure(group: Sequence[SearchResult]) -> Figure:
    """The best score of each study: how much of a difference between optimizers a single study could make up."""
    figure, axes = canvas()
    metric = TASKS[group[0].task].metric
    shown = []
    for i, search in enumerate(group):
        best = [row.score for row in map(winner, by_study(search.own)) if row is not None]
        colour = style(search.config.optimizer).light
        axes.scatter([i] * len(best), best, color=colour, s=28, zorder=3, alpha=0.8)
        axes.hlines(float(np.mean(best)), i - 0.25, i + 0.25, color=colour, linewidth=2)
        shown += best
    margin = max(0.15 * (max(shown) - min(shown)), 0.002)
    finish(axes, "", possible(min(shown) - margin, max(shown) + margin, metric), legend=False, metric=metric)
    axes.set_xticks(range(len(group)), [OPTIMIZERS[search.config.optimizer].label for search in group])
    axes.set_xlim(-0.6, len(group) - 0.4)
    axes.set_title(f"best validation {metric.heading} of each study, bar: mean", loc="left", fontsize=9)
    return figure


def value_cell(score: float, metric: Metric, more: str = "") -> Cell:
    value = metric.of_score(score)
    return Cell(shown(value, metric) + more, value)


def shown(value: float, metric: Metric) -> str:
    """A value of :meth:`Metric.of_score` below a heading that has its unit.

    Example:
        >>> from arturo_lab.tasks.metrics import ACCURACY, LOSS
        >>> shown(97.5, ACCURACY), shown(0.0012345, LOSS)
        ('97.50', '0.001234')
    """
    return metric.text(value / 100).removesuffix("%") if metric.percent else metric.text(value)


def estimate_cell(estimate: dict[str, Any], metric: Metric) -> Cell:
    """A mean and its doubled standard error, as `arturo tune` stores them."""
    mean, error = estimate["mean"], estimate["doubled_error"]
    scale, digits = (100, 2) if metric.percent else (1, 4)
    return Cell(f"{scale * mean:.{digits}f}" + ("" if error is None else f" ± {scale * error:.{digits}f}"), mean)
