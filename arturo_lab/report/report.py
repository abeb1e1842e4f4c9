"""A report on runs: tables for the terminal, summary.json for programs, one HTML page, figures and tables for papers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.report import writers
from arturo_lab.report.across import profiles_table, ranks_table, results_table
from arturo_lab.report.comparison import AGAINST, Comparison, compare, missing_reference, no_runs_of
from arturo_lab.report.page import plain
from arturo_lab.report.plots import stems, write_figures
from arturo_lab.report.ranking import Ranking, ranking
from arturo_lab.report.report_page import report_page
from arturo_lab.report.sections import Section
from arturo_lab.report.table import Table
from arturo_lab.report.tables import comparison_table, pairs_table, seeds_table
from arturo_lab.runs import atomic
from arturo_lab.runs.records import Problem

MOST_PAIRS = 15  # in the terminal; the page and summary.json have all


@dataclass(frozen=True)
class Written:
    """Where it went."""

    page: Path
    summary: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]

    def say(self, console: Console) -> None:
        """The pictures that hold all panels, the page, the numbers."""
        for path in self.figures:
            if path.suffix == ".png" and not any(path.stem.startswith(f"{other.stem}-") for other in self.figures):
                console.print(f"figure: {path}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"page: {self.page}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"numbers: {self.summary}", soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True)
class Report:
    """Args:
    sections: the runs, sorted.
    problems: what could not be read.
    command: that makes it.
    target: of the time to target; None lets each section choose.
    against: what everything is compared with, see :func:`arturo_lab.report.comparison.compare`.
    """

    sections: Sequence[Section]
    problems: Sequence[Problem]
    command: str
    target: float | None = None
    against: str | None = None

    def __post_init__(self) -> None:
        if missing_reference(self.sections, self.against):
            raise no_runs_of(self.against, (variant.optimizer for section in self.sections for variant in section.variants))

    @cached_property
    def comparisons(self) -> list[Comparison]:
        return [compare(section, self.against) for section in self.sections]

    @cached_property
    def ranking(self) -> Ranking | None:
        return ranking(self.sections, self.target)

    def show(self, console: Console) -> None:
        """The tables that a terminal has room for, and each note once."""
        shown: list[Table] = []
        for section, comparison in zip(self.sections, self.comparisons, strict=True):
            shown.append(comparison_table(section, comparison, self.target))
            if comparison.reference is None and 0 < len(comparison.differences) <= MOST_PAIRS:
                shown.append(pairs_table(section, comparison))
        if self.ranking is not None:
            shown += [ranks_table(self.ranking), profiles_table(self.ranking)]
        for table in shown:
            console.print()
            writers.show(dataclasses.replace(table, notes=()), console)
        for note in dict.fromkeys(note for table in shown for note in table.notes):
            console.print(note, style="dim", highlight=False, markup=False)

    def summary(self) -> dict[str, Any]:
        """All numbers. Accuracies are fractions, times seconds of training; None is what there is none of."""
        runs = [run for section in self.sections for run in section.runs]
        environments = {json.dumps(run.environment, sort_keys=True): run.environment for run in runs}
        across = None
        if self.ranking is not None:
            make = (ranks_table, profiles_table, results_table)
            across = {table.name: writers.as_json(table) for table in (each(self.ranking) for each in make)}
        result = {
            "command": self.command,
            "against": AGAINST if self.against is None else self.against,
            "tasks": [self.task(s, c) for s, c in zip(self.sections, self.comparisons, strict=True)],
            "across": across,
            "environments": list(environments.values()),
        }
        return plain(result)  # type: ignore[no-any-return]

    def task(self, section: Section, comparison: Comparison) -> dict[str, Any]:
        table = comparison_table(section, comparison, self.target)
        metric = section.metric
        rows = zip(section.variants, table.records(), strict=True)
        return {
            **section.protocol,
            "title": section.title,
            "metric": {"name": metric.name, "unit": metric.unit, "better": "higher" if metric.higher else "lower"},
            "seeds": section.seeds,
            "target": section.target if self.target is None else self.target,
            "against": None if comparison.reference is None else comparison.reference.label,
            "optimizers": [{**row, "settings": variant.runs[0].config.get("settings")} for variant, row in rows],
            "pairs": pairs_table(section, comparison).records() if comparison.reference is None else None,
            "notes": list(table.notes),
        }

    def tables(self) -> dict[str, Table]:
        """Those worth a file, by its stem."""
        result = {}
        for stem, section, comparison in zip(stems(self.sections), self.sections, self.comparisons, strict=True):
            result[stem] = comparison_table(section, comparison, self.target)
            result[f"{stem}-seeds"] = seeds_table(section)
            if comparison.reference is None and comparison.differences:
                result[f"{stem}-pairs"] = pairs_table(section, comparison)
        if self.ranking is not None:
            for table in (ranks_table(self.ranking), profiles_table(self.ranking), results_table(self.ranking)):
                result[table.name] = table
        return result

    def page(self, live: str | None = None) -> str:
        return report_page(self.sections, self.comparisons, self.ranking, self.problems, self.command, self.target, live)

    def write(self, folder: Path, figures: bool = True) -> Written:
        """Write report.html, summary.json, tables/ and figures/ to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        pictures = write_figures(self.sections, folder / "figures", self.ranking) if figures else []
        atomic.write_json(folder / "summary.json", self.summary())
        atomic.write(folder / "report.html", self.page().encode())
        (folder / "tables").mkdir(exist_ok=True)
        paths = []
        for stem, table in self.tables().items():
            for kind, text in (("csv", writers.as_csv(table)), ("tex", writers.latex(table))):
                paths.append(folder / "tables" / f"{stem}.{kind}")
                atomic.write(paths[-1], text.encode())
        return Written(folder / "report.html", folder / "summary.json", tuple(pictures), tuple(paths))
