"""The writers of a table: terminal, HTML, Markdown, JSON, CSV, LaTeX. What is in it is decided in the table alone."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from arturo_lab.report.page import plain, rendered
from arturo_lab.report.table import Cell, Table

GREEK = ("eta", "varepsilon", "lambda", "nu", "rho", "gamma", "tau", "Sigma")
NAME_WIDTH = 26  # letters of a row's name that a terminal keeps on one line
DETAIL_WIDTH = 14  # and of a cell's detail
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: rf"$\{name}$" for letter, name in zip("ηελνργτΣ", GREEK, strict=True)},
}


def terminal(table: Table, narrow: bool = False) -> RichTable:
    """For ``console.print``. The best cells are bold; the notes stand below. ``narrow``: headings of numbers are broken."""
    table = table.without(lambda column: column.graphic or column.secondary)
    result = RichTable(
        title=Text(table.title, style="bold") if table.title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        caption=Text("\n".join(table.notes)) if table.notes else None,
        caption_justify="left",
    )
    for i, column in enumerate(table.columns):
        longest = max((len(line) for row in table.rows for line in row[i].text.splitlines()), default=0)
        # Headings may be broken between words, numbers not, and names and details only if they are long.
        if i == 0 or column.align == "left" or column.wrap:
            result.add_column(
                Text(column.heading), justify=column.align, min_width=min(longest, NAME_WIDTH) if i == 0 else None
            )
        else:
            details = [row[i].detail for row in table.rows]
            pieces = [p for d in details for p in (d.split() if len(d) > DETAIL_WIDTH else [d])]
            width = max(longest, *map(len, [*column.heading.split(), *pieces]), 1) if narrow else None
            result.add_column(Text(column.heading), justify=column.align, min_width=longest, width=width)
    for row in table.rows:
        result.add_row(*map(_terminal_cell, row))
    return result


def show(table: Table, console: Console) -> None:
    """Print a table, and its notes over the whole width. One that is too wide is printed in parts, below each other."""
    for part in fitting(dataclasses.replace(table, notes=()), console):
        wide = console.measure(terminal(part), options=console.options.update(max_width=10_000)).maximum
        console.print(terminal(part, narrow=wide > console.width))
    for note in table.notes:
        console.print(note, style="dim", highlight=False, markup=False)


def fitting(table: Table, console: Console) -> Iterator[Table]:
    """The columns in as many tables as it takes until a terminal shows every number whole, each with the rows' names."""
    table = table.without(lambda column: column.graphic or column.secondary)
    names = range(next((i for i, column in enumerate(table.columns) if column.align != "left"), 1) or 1)
    wide = console.options.update(max_width=10_000)
    title, left = table.title, list(range(len(names), len(table.columns)))
    while True:
        fit = 1
        while (
            fit < len(left)
            and console.measure(terminal(table.only([*names, *left[: fit + 1]]), True), options=wide).minimum <= console.width
        ):
            fit += 1
        yield dataclasses.replace(table.only([*names, *left[:fit]]), title=title)
        title, left = "", left[fit:]
        if not left:
            return


def _terminal_cell(cell: Cell) -> Text:
    """As text: what looks like markup in a name is none."""
    text = Text(cell.text, style="bold" if cell.best else "")
    return text.append(f"\n{cell.detail}", style="dim not bold") if cell.detail else text


def html(table: Table, sortable: bool = True, export: bool = True) -> Markup:
    """With links that save it as CSV and LaTeX; a click on a heading sorts (web/tables.js)."""
    exports = {"csv": as_csv(table), "tex": latex(table)} if export and table.rows else {}
    return rendered("table.html", table=table, sortable=sortable and len(table.rows) > 1, exports=exports)


def markdown(table: Table) -> str:
    """A pipe table and the notes, without the title. Details stand in the same cell, after the text.

    Example:
        >>> from arturo_lab.report.table import Column
        >>> columns = (Column("optimizer", align="left"), Column("ours", unit="%"))
        >>> print(markdown(Table("t", "", columns, ((Cell("SGD"), Cell("92.84", 0.9284, best=True)),), ("A note.",))))
        | optimizer | ours [%] |
        |---|---:|
        | SGD | **92.84** |
        <BLANKLINE>
        A note.
    """
    table = table.in_text
    lines = ["| " + " | ".join(_bare(column.heading) for column in table.columns) + " |"]
    lines.append("|" + "".join("---:|" if column.align == "right" else "---|" for column in table.columns))
    for row in table.rows:
        lines.append("| " + " | ".join(map(_markdown_cell, row)) + " |")
    return "\n\n".join(["\n".join(lines), *table.notes])


def _markdown_cell(cell: Cell) -> str:
    text = f"**{_bare(cell.text)}**" if cell.best else _bare(cell.text)
    return f"{text} ({_bare(cell.detail)})" if cell.detail else text


def _bare(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def as_json(table: Table) -> dict[str, Any]:
    """Plain data: what the columns are, and a record for each row."""
    columns = [{"field": c.field, "name": c.name, "unit": c.unit or None, "better": c.better} for c in table.in_text.columns]
    value = {"name": table.name, "title": table.title, "columns": columns, "rows": table.records(), "notes": list(table.notes)}
    return plain(value)  # type: ignore[no-any-return]


def as_csv(table: Table) -> str:
    """A line of field names, then a line for each row: numbers as they are, not as they are shown.

    Example:
        >>> from arturo_lab.report.table import Column
        >>> print(as_csv(Table("t", "", (Column("who"), Column("ours")), ((Cell("A, B"), Cell("92.8", 0.928)),))), end="")
        who,ours
        "A, B",0.928
    """
    records = [{k: v for k, v in record.items() if not isinstance(v, dict | list | tuple)} for record in table.records()]
    fields = list(dict.fromkeys(key for record in records for key in record)) or [column.field for column in table.columns]
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain(record) for record in records)
    return out.getvalue()


def latex(table: Table) -> str:
    """A tabular for booktabs.

    Example:
        >>> from arturo_lab.report.table import Column
        >>> columns = (Column("optimizer", align="left"), Column("ours", unit="%"))
        >>> print(latex(Table("t", "", columns, ((Cell("SGD"), Cell("92.84 ± 0.1", 0.9284, best=True)),))), end="")
        \\begin{tabular}{lr}
        \\toprule
        optimizer & ours [\\%] \\\\
        \\midrule
        SGD & \\textbf{92.84 $\\pm$ 0.1} \\\\
        \\bottomrule
        \\end{tabular}
    """
    table = table.in_text
    lines = [rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}", r"\toprule"]
    lines += [" & ".join(_tex(column.heading) for column in table.columns) + r" \\", r"\midrule"]
    for row in table.rows:
        lines.append(" & ".join(rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text.replace("\n", " "))
