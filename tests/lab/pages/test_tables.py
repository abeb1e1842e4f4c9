"""One table, six writers: the same cells in each of them."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from arturo_lab.report import writers
from arturo_lab.report.table import Cell, Column, Table, number, with_best, words

EVIL = '<b onclick="x">|&_%\\ [bold]'


@pytest.fixture
def table() -> Table:
    columns = (
        Column("optimizer", key="label", align="left"),
        Column("", key="bar", graphic=True),
        Column("loss", unit="nats", better="lower"),
        Column("time per epoch", unit="s", better="lower"),
    )
    rows = (
        (
            words("SGD"),
            Cell("", bar={"data": 40.0, "forward": 60.0}),
            number(1.25, "1.2500", detail="3 seeds"),
            number(2.0, "2.0"),
        ),
        (
            words(EVIL),
            Cell("", bar={"data": 10.0}),
            number(1.5, "1.5000", fields={"by_seed": {"0": 1.5}, "n": 1}),
            number(None, ""),
        ),
    )
    return Table("comparison", "A task", columns, with_best(columns, rows), ("A note.",))


def test_the_best_is_marked_by_the_direction_of_its_column(table: Table) -> None:
    assert [cell.best for cell in table.column("loss")] == [True, False]
    higher = with_best(
        (Column("x", better="higher"),), ((number(1, "1"),), (number(2, "2"),), (number(2, "2"),), (words("-"),))
    )
    assert [row[0].best for row in higher] == [False, True, True, False]
    assert not any(row[0].best for row in with_best((Column("x"),), ((number(1, "1"),),)))


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^table t: a row has 1 cells for 2 columns"):
        Table("t", "", (Column("a"), Column("b")), ((words("x"),),))


def test_terminal(table: Table) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(writers.terminal(table))
    text = console.export_text()
    assert "A task" in text and "loss [nats]" in text and "1.2500" in text and "3 seeds" in text and "A note." in text
    assert EVIL in text  # markup of others is text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_terminal_breaks_headings_and_not_numbers(table: Table, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(writers.terminal(table))
    text = console.export_text()
    assert "1.2500" in text and "1.5000" in text


@pytest.mark.parametrize("width", [40, 60, 80, 300])
def test_a_table_that_is_too_wide_is_shown_in_parts(width: int) -> None:
    """Every number whole, in order, and beside it the names of its row; the title once."""
    names = (Column("task", align="left"), Column("optimizer", align="left"))
    columns = (*names, *(Column(f"result {i}", unit="%") for i in range(9)))
    numbers = [[f"{10 * row + i}.0{row}{i} ± 0.{i}{row}" for i in range(9)] for row in range(2)]
    rows = tuple((words("digits"), words(("SGD", "AdamW")[row]), *map(words, numbers[row])) for row in range(2))
    console = Console(width=width, record=True, file=io.StringIO())
    writers.show(Table("wide", "A title", columns, rows, ("A note.",)), console)
    lines = console.export_text().splitlines()
    for row, name in enumerate(("SGD", "AdamW")):
        own = [line for line in lines if name in line]
        assert all(line.split()[:2] == ["digits", name] for line in own)
        assert " ".join(" ".join(line.split()[2:]) for line in own) == " ".join(numbers[row])
        assert (len(own) == 1) == (width == 300)
    assert sum("A title" in line for line in lines) == sum("A note." in line for line in lines) == 1


@pytest.mark.parametrize("width", [50, 80, 110])
def test_no_number_is_cut_off(width: int) -> None:
    """Names, details and headings that ask for more room than there is."""
    names = ("epochs to 85 %", "time to 85 %", "diverged", "lr close to its own best", "profile, time")
    columns = (Column("optimizer", align="left"), Column("test accuracy", unit="%"), *map(Column, names))
    numbers = (Cell("97.50 ± 0.48", detail="partial: 1 of 3 seeds"), Cell("8", detail="1 of 3"))
    row = (Cell("schedule-free AdamW (warm-up)"), *numbers, *map(Cell, ("12 s", "0 of 9", "0.00316 to 0.0316", "0.351")))
    console = Console(width=width, record=True, file=io.StringIO())
    writers.show(Table("t", "", columns, (row,)), console)
    text = console.export_text()
    for whole in ("97.50 ± 0.48", "1 of 3", "12 s", "0 of 9", "0.00316 to 0.0316", "0.351", "diverged", "profile"):
        assert whole in text
    assert max(map(len, text.splitlines())) <= width


def test_markdown(table: Table) -> None:
    lines = writers.markdown(table).splitlines()
    assert lines[:3] == [
        "| optimizer | loss [nats] | time per epoch [s] |",
        "|---|---:|---:|",
        "| SGD | **1.2500** (3 seeds) | **2.0** |",
    ]
    assert lines[3].count("|") == 5 and "\\|" in lines[3] and lines[-1] == "A note."


def test_json_is_numbers(table: Table) -> None:
    value = writers.as_json(table)
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["columns"][1] == {"field": "loss", "name": "loss", "unit": "nats", "better": "lower"}
    sgd, other = value["rows"]
    assert sgd == {"label": "SGD", "loss": 1.25, "time_per_epoch": 2.0}
    assert other == {"label": EVIL, "loss": 1.5, "time_per_epoch": None, "by_seed": {"0": 1.5}, "n": 1}


def test_csv_reads_back(table: Table) -> None:
    sgd, other = csv.DictReader(io.StringIO(writers.as_csv(table)))
    assert sgd == {"label": "SGD", "loss": "1.25", "time_per_epoch": "2.0", "n": ""}
    assert (other["label"], other["n"], other["time_per_epoch"]) == (EVIL, "1", "")
    assert "by_seed" not in other  # what is no single number is in the JSON


def test_latex_escapes(table: Table) -> None:
    text = writers.latex(table)
    assert r"\begin{tabular}{lrr}" in text and r"SGD & \textbf{1.2500} & \textbf{2.0} \\" in text
    assert r"\&\_\%\textbackslash{} [bold]" in text


def test_html_escapes_sorts_and_exports(table: Table) -> None:
    text = writers.html(table)
    assert "<b onclick" not in text and "&lt;b onclick=" in text
    assert 'class="right best" data-value="1.25">1.2500<small>3 seeds</small></td>' in text
    assert text.count('class="sort"') == 3 and 'class="part-data" style="width:40.00%"' in text
    assert 'download="comparison.csv" href="data:text/plain;charset=utf-8,label%2Closs' in text and "comparison.tex" in text
    assert 'class="sort"' not in writers.html(table, sortable=False, export=False) and "download" not in writers.html(
        table, export=False
    )
