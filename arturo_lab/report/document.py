"""A written result: tables, figures and paragraphs under headings, as NAME.md for people and NAME.json for programs.

Its figure goes to NAME.png and NAME.pdf; where there are several, each part names its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from arturo_lab.report.page import plain
from arturo_lab.report.plots import save
from arturo_lab.report.table import Table
from arturo_lab.report.writers import as_csv, as_json, latex, markdown, show
from arturo_lab.runs import atomic


@dataclass(frozen=True)
class Part:
    """What stands under one heading, in this order. The first part of a document usually has no heading."""

    heading: str = ""
    paragraphs: tuple[str, ...] = ()  # Markdown
    table: Table | None = None
    after: tuple[str, ...] = ()  # paragraphs below the table
    figure: Figure | None = None
    figure_name: str = ""  # of its files; "": the document's name
    shown: bool = True  # in the terminal


@dataclass(frozen=True)
class Document:
    """Args:
    name: of its files.
    title: its first line.
    command: that makes it.
    parts: what it holds.
    facts: further entries of its JSON.
    """

    name: str
    title: str
    command: str
    parts: tuple[Part, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        blocks = [f"# {self.title}"]
        for part in self.parts:
            blocks += [f"## {part.heading}"] if part.heading else []
            blocks += part.paragraphs
            blocks += [] if part.table is None else [markdown(part.table)]
            blocks += part.after
            blocks += [] if part.figure is None else [f"![{part.heading or self.title}]({self.stem(part)}.png)"]
        blocks.append(f"Made by `{self.command}`." if "\n" not in self.command else f"Made by\n\n```\n{self.command}\n```")
        return "\n\n".join(blocks) + "\n"

    def stem(self, part: Part) -> str:
        return part.figure_name or self.name

    @property
    def tables(self) -> list[Table]:
        return [part.table for part in self.parts if part.table is not None]

    def json(self) -> dict[str, Any]:
        """``rows`` are those of the first table, which is what the document is about."""
        tables = self.tables
        rows = as_json(tables[0])["rows"] if tables else []
        value = {
            "title": self.title,
            "command": self.command,
            **self.facts,
            "rows": rows,
            "tables": [as_json(t) for t in tables[1:]],
        }
        return plain(value)  # type: ignore[no-any-return]

    def show(self, console: Console) -> None:
        """The tables, and what stands with them."""
        for part in (part for part in self.parts if part.shown):
            for text in part.paragraphs:
                console.print(text, highlight=False, markup=False)
            if part.table is not None:
                show(part.table, console)
            for text in part.after:
                console.print(text, highlight=False, markup=False)

    def write(self, folder: Path) -> list[Path]:
        """Write all of it; return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.md", folder / f"{self.name}.json"]
        atomic.write(paths[0], self.markdown().encode())
        atomic.write_json(paths[1], self.json())
        if self.tables:
            for kind, text in (("csv", as_csv(self.tables[0])), ("tex", latex(self.tables[0]))):
                paths.append(folder / f"{self.name}.{kind}")
                atomic.write(paths[-1], text.encode())
        for part in self.parts:
            if part.figure is not None:
                paths += save(part.figure, folder / self.stem(part))
        return paths
