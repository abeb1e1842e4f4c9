"""One artefact of the paper as files: NAME.md for people, NAME.json for programs, NAME.png and NAME.pdf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from arturo_lab.report.page import plain
from arturo_lab.report.plots import save
from arturo_lab.report.wording import count, seed_words
from arturo_lab.runs import atomic
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record


@dataclass(frozen=True)
class Content:
    """What an artefact shows."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]  # of the table, as text
    data: list[dict[str, Any]]  # the same and more, as numbers
    notes: tuple[str, ...] = ()  # below the table
    figure: Figure | None = None


@dataclass(frozen=True)
class Document:
    """An artefact with everything one must know to judge it."""

    title: str
    scale: str
    about: str  # the scale in words
    command: str
    configs: Sequence[RunConfig]
    records: Sequence[Record]  # those of the configs that are there
    deviations: Sequence[str]
    content: Content

    @property
    def missing(self) -> int:
        """Runs that are not over."""
        return len(self.configs) - sum(record.status != "unfinished" for record in self.records)

    def markdown(self, picture: str | None = None) -> str:
        """The page; ``picture`` is the figure's file, seen from there."""
        parts = [f"# {self.title}", f"Scale `{self.scale}`: {self.about}. Made by `{self.command}`."]
        if self.missing:
            parts.append(f"**Not complete: {self.missing} of {count(len(self.configs), 'run')} are missing.**")
        parts.append(markdown_table(self.content.headings, self.content.rows))
        parts += self.content.notes
        if picture is not None:
            parts.append(f"![{self.title}]({picture})")
        parts += ["## Protocol", markdown_table(*protocol(self.configs))]
        parts += ["## What differs from the paper", "\n".join(f"- {line}" for line in self.deviations) or "Nothing."]
        parts += ["## Environment", "\n".join(f"- {line}" for line in environments(self.records)) or "Not recorded."]
        return "\n\n".join(parts) + "\n"

    def json(self) -> dict[str, Any]:
        headings, rows = protocol(self.configs)
        return {
            "title": self.title,
            "scale": self.scale,
            "command": self.command,
            "missing_runs": self.missing,
            "protocol": [dict(zip(headings, row, strict=True)) for row in rows],
            "deviations": list(self.deviations),
            "environments": environments(self.records),
            "rows": plain(self.content.data),
        }

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write all of it; return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        figure = self.content.figure
        pictures = [] if figure is None else save(figure, folder / name)
        page, numbers = folder / f"{name}.md", folder / f"{name}.json"
        atomic.write(page, self.markdown(pictures[0].name if pictures else None).encode())
        atomic.write_json(numbers, self.json())
        return [page, numbers, *pictures]


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    Example:
        >>> print(markdown_table(["optimizer", "ours"], [["SGD", "92.84"]]))
        | optimizer | ours |
        |---|---|
        | SGD | 92.84 |
    """
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def protocol(configs: Sequence[RunConfig]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """How each task was run: headings and rows."""
    rows: list[tuple[str, ...]] = []
    for task in dict.fromkeys(config.task for config in configs):
        mine = [config for config in configs if config.task == task]
        first = mine[0]
        rows.append(
            (
                task,
                str(first.epochs),
                f"{first.training_images:,}",
                str(first.batch_size),
                seed_words(sorted({config.seed for config in mine})).partition(" ")[2],
                " ".join(dict.fromkeys(config.optimizer for config in mine)),
            )
        )
    return ("task", "epochs", "images", "batch", "seeds", "optimizers"), rows


def environments(records: Sequence[Record]) -> list[str]:
    """Each machine and set of versions that took part, once."""
    keys = ("torch", "python", "arturo", "revision", "cpu", "cores", "device")
    described = (
        ", ".join(f"{key} {record.environment[key]}" for key in keys if record.environment.get(key) is not None)
        for record in records
    )
    return [line for line in dict.fromkeys(described) if line]
