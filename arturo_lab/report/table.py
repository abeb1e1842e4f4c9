"""A table as a value. Everything the laboratory tabulates is one of these; :mod:`arturo_lab.report.writers` writes it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from arturo_lab.report.palette import Style

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """Args:
    name: its heading.
    key: its field in JSON and CSV; None: the name in lower case with underscores.
    unit: behind the name, in brackets.
    align: of the cells.
    better: which numbers are better; None for a column that is not judged.
    wrap: whether long text may be broken into lines.
    graphic: whether its cells are bars, which only HTML shows.
    secondary: whether a terminal, where room is scarce, does without.
    """

    name: str
    key: str | None = None
    unit: str = ""
    align: Literal["left", "right"] = "right"
    better: Literal["higher", "lower"] | None = None
    wrap: bool = False
    graphic: bool = False
    secondary: bool = False

    @property
    def heading(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    @property
    def field(self) -> str:
        """
        Example:
            >>> Column("time per epoch", unit="s").field, Column("p", key="p_value").field
            ('time_per_epoch', 'p_value')
        """
        return self.key or "_".join(self.name.lower().split())


@dataclass(frozen=True)
class Cell:
    """Args:
    text: as people read it.
    value: as programs read it, and what a page sorts by; None: the text.
    detail: a second line in small letters.
    best: whether it is the best of its column, or of its part of the column.
    fields: further entries of the row in JSON; those that are single numbers or words also in CSV.
    look: the line of an optimizer, drawn before its name.
    bar: lengths of a bar's parts by name, in percent of the longest bar.
    """

    text: str
    value: Scalar = None
    detail: str = ""
    best: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    look: Style | None = None
    bar: Mapping[str, float] = field(default_factory=dict)


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Args:
    name: of its files.
    title: above it.
    columns, rows: as many cells in each row as there are columns.
    notes: below it, each a paragraph.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name}: a row has {len(row)} cells for {len(self.columns)} columns")

    @property
    def in_text(self) -> Table:
        """Without the columns that are bars."""
        return self.without(lambda column: column.graphic)

    def without(self, dropped: Callable[[Column], bool]) -> Table:
        """Without the columns of which this is true."""
        return self.only([i for i, column in enumerate(self.columns) if not dropped(column)])

    def only(self, kept: Sequence[int]) -> Table:
        """The columns with these numbers."""
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return dataclasses.replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    def records(self) -> list[dict[str, Any]]:
        """A dict for each row: the fields of its columns, then the cells' further ones."""
        result = []
        columns = self.in_text.columns
        for row in self.in_text.rows:
            values = {
                column.field: cell.text if cell.value is None and cell.text != "-" else cell.value
                for column, cell in zip(columns, row, strict=True)
            }
            for cell in row:
                values.update(cell.fields)
            result.append(values)
        return result

    def column(self, field: str) -> list[Cell]:
        """The cells of the column with this field."""
        index = [column.field for column in self.columns].index(field)
        return [row[index] for row in self.rows]


def words(text: object) -> Cell:
    """A cell that is only text.

    Example:
        >>> words("SGD").text, words(None).text
        ('SGD', '-')
    """
    return Cell("-" if text is None else str(text))


def number(value: float | None, text: str, **more: Any) -> Cell:
    """A cell with a number, "-" without.

    Example:
        >>> number(1.5, "1.5 s").value, number(None, "").text
        (1.5, '-')
    """
    return Cell("-") if value is None or not math.isfinite(value) else Cell(text, value, **more)


def with_best(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Row, ...]:
    """The same rows with the best number of every judged column marked; equal ones together."""
    best = []
    for index, column in enumerate(columns):
        values = [value for row in rows if isinstance(value := row[index].value, int | float)]
        best.append(None if column.better is None or not values else (max if column.better == "higher" else min)(values))
    return tuple(
        tuple(dataclasses.replace(cell, best=best[i] is not None and cell.value == best[i]) for i, cell in enumerate(row))
        for row in rows
    )
