"""Several searches side by side: a page of Markdown, and the figures that compare optimizers on one task."""

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
from arturo_lab.report.evidence import Estimate
from arturo_lab.report.palette import style
from arturo_lab.report.wording import mean_with_error
from arturo_lab.runs import atomic
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.metrics import Metric
from arturo_lab.tuning.figures import best_after_k, by_study, canvas, finish, possible
from arturo_lab.tuning.outcome import Row, read_rows, winner

BUDGET = ("protocol", "studies", "trials", "folds", "seeds", "epochs", "batch_size", "subset")
NEEDED = ("protocol", "folds", "seeds", "studies", "trials", "pruned", "diverged", "params", "validation", "edges", "test")


@dataclass(frozen=True)
class Found:
    """A search that is over."""

    config: ConfigFile
    rows: list[Row]

    @property
    def task(self) -> str:
        return str(self.config.task)

    @property
    def own(self) -> list[Row]:
        return [row for row in self.rows if not row.crossed]

    def budget(self, key: str) -> object:
        return getattr(self.config, key) if hasattr(self.config, key) else self.config.search[key]


def read_found(file: Path) -> Found:
    config, trials = read_config_file(file), file.with_suffix("") / "trials.jsonl"
    lacking = [key for key in NEEDED if key not in config.search]
    if lacking or config.task not in TASKS or config.optimizer not in OPTIMIZERS or not trials.exists():
        raise ConfigError(f"FILE: {file} is not what `arturo tune` wrote, or {trials} is missing")
    return Found(config, read_rows(trials))


def check_alike(group: Sequence[Found]) -> None:
    """Searches of one task stand in one table: each optimizer once, the same budget for all."""
    first = group[0]
    for i, search in enumerate(group):
        optimizer = search.config.optimizer
        if optimizer in [other.config.optimizer for other in group[:i]]:
            raise ConfigError(f"FILE: two searches of {optimizer} on {search.task}; name one of them")
        for key in BUDGET:
            here, there = search.budget(key), first.budget(key)
            if here != there:
                raise ConfigError(
                    f"FILE: the searches on {search.task} do not compare: {key} is {there!r} for {first.config.optimizer} and "
                    f"{here!r} for {optimizer}; report them apart"
                )


def write_overview(found: Sequence[Found], folder: Path) -> list[Path]:
    """``tuning.md`` and a figure for each task; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "tuning.md"]
    parts = ["# What the searches found\n"]
    for task in dict.fromkeys(search.task for search in found):
        group = [search for search in found if search.task == task]
        check_alike(group)
        parts.append(f"## {TASKS[task].title}\n\n{about(group)}\n\n{table(group)}\n")
        figure = best_after_k({search.config.optimizer: search.own for search in group}, TASKS[task].metric)
        figures = {f"{task}-best-after-k.png": figure}
        if len(by_study(group[0].own)) > 1:
            figures[f"{task}-studies.png"] = studies_figure(group)
        for name, figure in figures.items():
            figure.suptitle(f"{TASKS[task].title}: {budget(group[0])}", fontsize=10)
            paths.append(folder / name)
            figure.savefig(paths[-1], dpi=120)
            parts.append(f"![{name.removesuffix('.png')}]({name})\n")
        if any(search.config.search["crossed"] for search in group):
            parts.append(cross_table(group))
        commands = "\n".join(search.config.search["command"] for search in group)
        parts.append(f"```\n{commands}\n```\n")
    atomic.write(paths[0], "\n".join(parts).encode())
    return paths


def budget(search: Found) -> str:
    """What each configuration was judged by."""
    how, config = search.config.search, search.config
    seeds = f" x {how['seeds']} seeds" if how["seeds"] > 1 else ""
    images = f", {config.subset:,} images" if config.subset else ""
    return f"{how['folds']} folds{seeds}, {config.epochs} epochs{images}"


def about(group: Sequence[Found]) -> str:
    how = group[0].config.search
    trials = how["trials"] // how["studies"]
    studies = f"{how['studies']} independent studies of " if how["studies"] > 1 else ""
    return (
        f"Protocol {how['protocol']}: {studies}{trials} trials for each optimizer, {budget(group[0])}. Validation: the "
        "winner's mean over folds and seeds ± doubled standard error, which is too high, as the best of many always is. "
        "Test: the winner trained with no fold held out, mean over seeds ± doubled standard error; the search had not "
        "looked at the test set before."
    )


def table(group: Sequence[Found]) -> str:
    several = group[0].config.search["studies"] > 1
    metric = TASKS[group[0].task].metric
    unit = ", %" if metric.percent else f", {metric.name}"
    studies = [f"best of each study{unit}"] if several else []
    heading = ["optimizer", f"validation{unit}", *studies, f"test{unit}", "pruned", "diverged"]
    lines = [_line([*heading, "values", "at an edge"]), _line(["---"] * (len(heading) + 2))]
    for search in group:
        how = search.config.search
        best = [metric.of_score(score) for score in (how["between_studies"] or {"best": []})["best"]] if several else []
        each = f"{', '.join(f'{b:.2f}' for b in best)} (sd {np.std(best, ddof=1):.2f})" if best else "-"
        tested = how["test"]
        of_another = tested and tested.get("params", how["params"]) != how["params"]
        values = ", ".join(f"{name} {value:.3g}" for name, value in how["params"].items())
        edges = ", ".join(line.split()[0] for line in how["edges"]) or "no"
        lines.append(
            _line(
                [
                    OPTIMIZERS[search.config.optimizer].label,
                    _shown(how["validation"], metric),
                    *([each] if several else []),
                    "of an earlier winner" if of_another else _shown(tested, metric) if tested else "not yet",
                    f"{how['pruned']} of {how['trials']}",
                    str(how["diverged"]),
                    values,
                    edges,
                ]
            )
        )
    return "\n".join(lines)


def cross_table(group: Sequence[Found]) -> str:
    """Every winner on this task, whichever task it won on."""
    metric = TASKS[group[0].task].metric
    lines = [
        "Cross-evaluation:\n",
        _line(["optimizer", "values of", "validation, %" if metric.percent else f"validation, {metric.name}"]),
        _line(["---"] * 3),
    ]
    for search in group:
        label = OPTIMIZERS[search.config.optimizer].label
        own = winner(search.own)
        lines.append(
            _line([label, f"{search.task} (its own)", "diverged" if own is None else f"{metric.of_score(own.score):.2f}"])
        )
        for crossed in search.config.search["crossed"]:
            given_up = "" if crossed["state"] == "complete" else f" ({crossed['state']})"
            lines.append(_line([label, crossed["from"], f"{metric.of_score(crossed['score']):.2f}{given_up}"]))
    return "\n".join(lines) + "\n"


def studies_figure(group: Sequence[Found]) -> Figure:
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


def _shown(estimate: dict[str, Any], metric: Metric) -> str:
    scale, digits = (100, 2) if metric.percent else (1, 4)
    return mean_with_error(Estimate(estimate["mean"], estimate["doubled_error"]), scale=scale, digits=digits)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |" if cells[0] != "---" else "|" + "|".join(cells) + "|"
