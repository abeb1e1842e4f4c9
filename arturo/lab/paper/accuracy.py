"""tab:accuracy: the final test accuracy of every optimizer on every task, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from arturo.lab.evidence import Estimate, smallest_p
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.paper import published
from arturo.lab.paper.document import Content
from arturo.lab.sections import Section, Summary
from arturo.lab.summary import row_summary
from arturo.lab.wording import count, mean_with_error, p_value

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
        f"are counted and in no mean. p: exact paired sign-flip test against our best with Holm's correction. {limit(sections)}"
    )
    return Content(HEADINGS, rows, data, ("\n".join(notes), footnote))


def limit(sections: Sequence[Section]) -> str:
    """What so few seeds can show at best."""
    pairs, tests = 0, 0
    for section in sections:
        tested = [row.pairs for row in section.summary() if row.p is not None]
        pairs, tests = max([pairs, *tested]), max(tests, len(tested))
    if not tests:
        return "Without two seeds there is no test."
    return f"With {pairs} seeds and {count(tests, 'comparison')} it is never below {min(1.0, tests * smallest_p(pairs)):.2g}."


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
