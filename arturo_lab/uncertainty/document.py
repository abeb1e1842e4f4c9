"""What ``arturo calibrate`` writes: NAME.md for people, NAME.json for programs, NAME.png and NAME.pdf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from arturo_lab.paper.document import markdown_table
from arturo_lab.report.page import plain
from arturo_lab.report.plots import save
from arturo_lab.runs import atomic
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.uncertainty.calibrate import Outcome
from arturo_lab.uncertainty.methods import METHODS
from arturo_lab.uncertainty.scores import BINS

# field, heading, factor, digits, whether more is better
COLUMNS = (
    ("accuracy", "accuracy, %", 100, 2, True),
    ("nll", "NLL, nats", 1, 4, False),
    ("ece", "ECE, %", 100, 2, False),
    ("brier", "Brier", 1, 4, False),
    ("ood_auroc", "AUROC elsewhere, %", 100, 2, True),
)


@dataclass(frozen=True)
class Page:
    """The outcomes with everything one must know to judge them."""

    task: str
    command: str
    protocol: dict[str, Any]  # in words and numbers, in this order
    outcomes: Sequence[Outcome]
    notes: Sequence[str] = ()

    @property
    def headings(self) -> tuple[str, ...]:
        return ("method", *(heading for _, heading, *_ in COLUMNS), "networks trained", "passes per prediction", "chosen")

    def rows(self) -> list[tuple[str, ...]]:
        """As text; the best of each column is bold."""
        best: dict[str, float] = {}
        for field, _, _, _, more in COLUMNS:
            values = [getattr(o.scores, field) for o in self.outcomes if getattr(o.scores, field) is not None]
            if values:
                best[field] = max(values) if more else min(values)
        rows = []
        for o in self.outcomes:
            cells = [METHODS[o.method].label]
            for field, _, factor, digits, _ in COLUMNS:
                value = getattr(o.scores, field)
                text = "–" if value is None else f"{factor * value:.{digits}f}"
                cells.append(f"**{text}**" if value is not None and value == best[field] else text)
            rows.append((*cells, str(o.networks), str(o.passes), chosen(o.chosen)))
        return rows

    def markdown(self, picture: str | None = None) -> str:
        parts = [
            f"# Calibration: {TASKS[self.task].title}",
            f"Made by `{self.command}`.",
            markdown_table(self.headings, self.rows()),
        ]
        parts += self.notes
        if picture is not None:
            parts.append(f"![Reliability]({picture})")
        parts += ["## Protocol", markdown_table(("what", "value"), [(k, str(v)) for k, v in self.protocol.items()])]
        about = [(METHODS[o.method].label, METHODS[o.method].about) for o in self.outcomes]
        return "\n\n".join([*parts, "## Methods", markdown_table(("method", "what it is"), about)]) + "\n"

    def json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "task": self.task,
            "protocol": plain(self.protocol),
            "notes": list(self.notes),
            "methods": plain([outcome.to_json() for outcome in self.outcomes]),
        }

    def write(self, folder: Path) -> list[Path]:
        """Write all of it; return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"calibrate-{self.task}"
        pictures = save(figure(self.outcomes), folder / name)
        page, numbers = folder / f"{name}.md", folder / f"{name}.json"
        atomic.write(page, self.markdown(pictures[0].name).encode())
        atomic.write_json(numbers, self.json())
        return [page, numbers, *pictures]


def chosen(values: dict[str, Any]) -> str:
    """
    Example:
        >>> chosen({"temperature": 0.01, "prior_precision": 100.0, "held_out_nll": 0.4, "at_edge": True}), chosen({})
        ('T = 0.01, prior 100 (edge)', '–')
    """
    if not values:
        return "–"
    edge = " (edge)" if values["at_edge"] else ""
    return f"T = {values['temperature']:g}, prior {values['prior_precision']:g}{edge}"


def figure(outcomes: Sequence[Outcome]) -> Figure:
    """A reliability diagram for each method: accuracy over confidence, and how many predictions there are of each."""
    columns = min(len(outcomes), 4)
    rows = -(-len(outcomes) // columns)
    result = Figure(figsize=(2.5 * columns, 2.7 * rows), layout="constrained")
    FigureCanvasAgg(result)
    panels = result.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, outcome in zip(panels.flat, outcomes, strict=False):
        draw(axes, outcome)
    for axes in list(panels.flat)[len(outcomes) :]:
        axes.set_axis_off()
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    return result


def draw(axes: Axes, outcome: Outcome) -> None:
    bins = outcome.scores.bins
    confidence, accuracy = (np.array([getattr(b, name) for b in bins]) for name in ("confidence", "accuracy"))
    share = np.array([b.count for b in bins]) / sum(b.count for b in bins)
    axes.bar(confidence, share, width=0.8 / BINS, color="0.85", label="share of predictions")
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle="--")
    axes.plot(confidence, accuracy, color="#D55E00", linewidth=1.5, marker="o", markersize=3)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1))
    axes.set_title(f"{METHODS[outcome.method].label}\nECE {100 * outcome.scores.ece:.1f} %", fontsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
