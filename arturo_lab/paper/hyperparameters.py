"""The paper's tables of hyperparameters, and what our runs of the same tasks are given."""

from __future__ import annotations

from typing import Any

from arturo_lab.data import loading
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import resolve
from arturo_lab.paper import published
from arturo_lab.paper.content import Content
from arturo_lab.report.table import Cell, Column, Row, Table, words
from arturo_lab.tasks.catalog import TASKS

FORMS = {"arturo": ("arturo", "arturo-paper")}  # which of our entries stand beside a table of the paper
PRINTED_DIGITS = 6


def hyperparameters() -> Content:
    """A row for each value of each optimizer, a column for each task: ours, and the paper's where it prints another."""
    columns = (
        Column("optimizer", align="left"),
        Column("value", align="left"),
        *(Column(TASKS[task].title, key=task) for task in published.TASKS),
    )
    rows: list[Row] = []
    for printed_as, values in published.HYPERPARAMETERS.items():
        for name in FORMS.get(printed_as, (printed_as,)):
            ours = {task: flat_settings(name, task) for task in published.TASKS}
            for value, printed in values.items():
                cells = (
                    value_cell(ours[task][value], number, task) for task, number in zip(published.TASKS, printed, strict=True)
                )
                rows.append((words(OPTIMIZERS[name].label), words(value), *cells))
            if printed_as in FORMS:
                for value, number in published.FIXED.items():
                    cells = (value_cell(ours[task].get(value), number, task) for task in published.TASKS)
                    rows.append((words(OPTIMIZERS[name].label), words(value), *cells))
    notes = (
        "As our runs are given them; in brackets what the paper prints, where that is another number. SGD, Adam and "
        "AdamW have the printed six decimals, arTuRO the authors' configuration in full. derived: initial_variance=None and "
        "initial_filter_variance=None let arTuRO settle its start from the other values; arTuRO (paper) starts as published.",
    )
    return Content(Table("hyperparameters", "Hyperparameters", columns, tuple(rows), notes))


def flat_settings(optimizer: str, task: str) -> dict[str, Any]:
    """What a run of the whole task is built with, betas apart."""
    settings: dict[str, Any] = dict(resolve(optimizer, task, loading.count(TASKS[task].data)))
    betas = settings.pop("betas", None)
    return settings if betas is None else {**settings, "beta1": betas[0], "beta2": betas[1]}


def value_cell(ours: float | None, paper: float, task: str) -> Cell:
    """
    Example:
        >>> cell = value_cell(0.0856746, 0.085675, "fmnist-cnn")
        >>> cell.text, cell.detail
        ('0.085675', '')
        >>> value_cell(0.5, 0.25, "fmnist-cnn").detail, value_cell(None, 0.01, "fmnist-cnn").text
        ('paper 0.25', 'derived')
    """
    fields = {f"{task}_paper": paper}
    if ours is None:
        return Cell("derived", detail=f"paper {paper:g}", fields=fields)
    same = round(ours, PRINTED_DIGITS) == round(paper, PRINTED_DIGITS)
    text = f"{ours:.{PRINTED_DIGITS}f}".rstrip("0").rstrip(".")
    return Cell(text, ours, "" if same else f"paper {paper:g}", fields=fields)
