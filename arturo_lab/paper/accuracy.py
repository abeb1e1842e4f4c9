"""tab:accuracy: the final test accuracy of every optimizer on every task, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.paper import published
from arturo_lab.paper.document import Content
from arturo_lab.report.evidence import Estimate
from arturo_lab.report.sections import Section, Summary
from arturo_lab.report.summary import row_summary
from arturo_lab.report.wording import mean_with_error, p_value, p_words

HEADINGS = ("task", "optimizer", "ours [%]", "p", "paper [%]", "ours − paper", "runs")


def accuracy_table(sections: Sequence[Section]) -> Content:
    """Mean ± doubled standard error, the best of each task in bold, the paper's as well as ours."""
    rows, data, notes = [], [], []
    for section in sections:
        summary = section.summary()
        printed = {row.variant.optimizer: published.accuracy(row.variant.optimizer, section.task) for row in summary}
        highest = max((estimate.mean for estimate in printed.values() if estimate is not None), default=None)
        for row in summary:
            paper = printed[row.variant.optimizer]
            rows.append(cells(section.task, row, paper, paper is not None and paper.mean == highest))
            entry = row_summary(row)
            data.append({"task": section.task, **entry, "paper": None if paper is None else vars(paper)})
        notes.append(f"- {section.title}: {order(summary, printed)}")
    footnote = (
        "Mean ± doubled standard error of the test accuracy after the last epoch; the best of a task is bold. Diverged runs "
        f"are counted and in no mean. {p_words(comparisons(sections))}"
    )
    return Content(HEADINGS, rows, data, ("\n".join(notes), footnote))


def comparisons(sections: Sequence[Section]) -> int:
    """How many optimizers are tested against the best of a task, at most."""
    return max((sum(row.p is not None for row in section.summary()) for section in sections), default=0)


def cells(task: str, row: Summary, paper: Estimate | None, paper_best: bool) -> tuple[str, ...]:
    ours = "-" if row.accuracy is None else mean_with_error(row.accuracy, 100, 2)
    theirs = "-" if paper is None else mean_with_error(paper, 100, 2)
    difference = "-" if paper is None or row.accuracy is None else f"{100 * (row.accuracy.mean - paper.mean):+.2f}"
    lost = [f"{n} {status}" for status in ("diverged", "unfinished") if (n := len(row.variant.with_status(status)))]
    return (
        task,
        row.variant.label,
        f"**{ours}**" if row.best else ours,
        "best" if row.best else "-" if row.p is None else p_value(row.p, row.pairs).removeprefix("p = "),
        f"**{theirs}**" if paper_best else theirs,
        difference.replace("-", "−") if difference != "-" else difference,
        ", ".join([str(len(row.variant.finished)), *lost]),
    )


def order(summary: Sequence[Summary], printed: dict[str, Estimate | None]) -> str:
    """Who is ahead of whom, here and in the paper, by the means alone."""
    ours = {row.variant.label: row.accuracy.mean for row in summary if row.accuracy is not None}
    theirs = {
        OPTIMIZERS[name].label: estimate.mean
        for name, estimate in printed.items()
        if estimate is not None and name not in published.PRINTED_AS
    }
    said = []
    for where, means in (("ours", ours), ("paper", theirs)):
        if means:
            said.append(f"{where} {' > '.join(sorted(means, key=lambda label: -means[label]))}")
    return "; ".join(said) + "." if said else "nothing finished yet."
