"""tab:accuracy: the final test accuracy of every optimizer on every task, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.paper import published
from arturo_lab.paper.content import Content, bullets
from arturo_lab.report.comparison import Comparison, compare
from arturo_lab.report.evidence import Estimate
from arturo_lab.report.sections import Section, Variant
from arturo_lab.report.table import Cell, Column, Row, Table, number, words
from arturo_lab.report.tables import difference_cell
from arturo_lab.report.wording import estimate_fields, mean_with_error

NOTE = (
    "Mean ± doubled standard error (the paper's measure) of the test accuracy after the last epoch; the best of a task "
    "is bold. Diverged runs are left out of means; in orders and tests they count as worse than any finished run."
)


def accuracy_table(sections: Sequence[Section], against: str | None = None) -> Content:
    """Ours and the paper's, the best of each task marked in both."""
    columns = (
        Column("task", align="left"),
        Column("optimizer", key="label", align="left"),
        Column("ours", key="test_accuracy", unit="%", better="higher"),
        Column("difference", unit="points"),
        Column("paper", key="paper_accuracy", unit="%", better="higher"),
        Column("ours − paper", key="ours_minus_paper", unit="points"),
        Column("runs"),
    )
    rows: list[Row] = []
    order = []
    comparisons = [compare(section, against) for section in sections]
    for section, comparison in zip(sections, comparisons, strict=True):
        printed = {v.optimizer: published.accuracy(v.optimizer, section.task) for v in section.variants}
        highest = max((estimate.mean for estimate in printed.values() if estimate is not None), default=None)
        for variant in section.variants:
            paper = printed[variant.optimizer]
            rows.append(
                (
                    words(section.task),
                    Cell(variant.label, variant.label, fields={"optimizer": variant.optimizer}),
                    accuracy_cell(variant.estimate, "test_accuracy", best=variant is section.best),
                    against_cell(comparison, variant),
                    accuracy_cell(paper, "paper_accuracy", best=paper is not None and paper.mean == highest),
                    minus_cell(variant.estimate, paper),
                    lost_cell(variant),
                )
            )
        order.append(f"{section.title}: {order_words(section, printed)}")
    notes = (NOTE, *comparison_notes(comparisons))
    return Content(Table("table1", "Final test accuracy", columns, tuple(rows), notes), (bullets(order),) if order else ())


def comparison_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """What the differences are, and how sure; each note once."""
    return list(dict.fromkeys(note for comparison in comparisons for note in comparison.notes()))


def accuracy_cell(estimate: Estimate | None, name: str, best: bool) -> Cell:
    if estimate is None:
        return Cell("-")
    fields = {f"{name}_{key}": value for key, value in estimate_fields(estimate).items() if key != "mean"}
    return Cell(mean_with_error(estimate, 100, 2), estimate.mean, best=best, fields=fields)


def against_cell(comparison: Comparison, variant: Variant) -> Cell:
    if comparison.reference is None:
        return Cell("-")
    return Cell("reference") if variant is comparison.reference else difference_cell(comparison.of(variant), variant.metric)


def minus_cell(ours: Estimate | None, paper: Estimate | None) -> Cell:
    if ours is None or paper is None:
        return Cell("-")
    difference = ours.mean - paper.mean
    return number(difference, f"{100 * difference:+.2f}".replace("-", "−"))


def lost_cell(variant: Variant) -> Cell:
    lost = [f"{n} {status}" for status in ("diverged", "unfinished") if (n := len(variant.with_status(status)))]
    return Cell(", ".join([str(len(variant.finished)), *lost]), len(variant.finished))


def order_words(section: Section, printed: dict[str, Estimate | None]) -> str:
    """Who is ahead of whom, here and in the paper, by the means alone."""
    ours = [variant.label for variant in section.ranked if variant.values]
    theirs = {
        OPTIMIZERS[name].label: estimate.mean
        for name, estimate in printed.items()
        if estimate is not None and name not in published.PRINTED_AS
    }
    orders = (("ours", ours), ("paper", sorted(theirs, key=lambda label: -theirs[label])))
    lines = [f"{where} {' > '.join(labels)}" for where, labels in orders if labels]
    return "; ".join(lines) + "." if lines else "nothing finished yet."
