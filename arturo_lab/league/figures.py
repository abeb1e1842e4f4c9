"""The figures of the league: AdaArturo against AdamW at a glance, ranks, curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from arturo_lab.league.field import DEVELOPED, OURS, REFERENCE, label
from arturo_lab.league.results import HEADLINE_STAGE, Outcome, mean_ranks, ratios, reached, variant
from arturo_lab.report.palette import VERMILION, style
from arturo_lab.report.plots import add_legend, bands_words, draw_curves, finish, grid, log_ticks
from arturo_lab.report.wording import count
from arturo_lab.tasks.catalog import TASKS

DRAWN = ("sgd", REFERENCE, "muon", "soap-warmup", OURS)  # in the curves: all twelve would hide each other
COLUMNS = 3  # panels beside each other
BETTER, WORSE = style(OURS).light, VERMILION[0]


def headline_figure(of: Outcome) -> Figure | None:
    """Two panels, a line for each task: how soon AdaArturo is as good as AdamW at its end, and what it ends at."""
    shown = [(section, there.epochs) for section in of.sections if (there := reached(section, OURS)) is not None]
    if not shown:
        return None
    figure, (left, right) = grid(1, 2)
    figure.set_size_inches(10, 0.27 * len(shown) + 1.6)
    for y, (section, epochs) in enumerate(shown):
        each, share = ratios(section), min(epochs / TASKS[section.task].epochs, 1.0)
        colour = BETTER if each and max(each) < 1 else WORSE if each and min(each) > 1 else "0.7"
        kept = epochs != math.inf and colour != WORSE  # what is reached and lost again is no success
        hatch = "////" if epochs != math.inf and colour == WORSE else None
        left.barh(y, 100 * share, height=0.62, facecolor=colour if kept else "none", edgecolor=colour, hatch=hatch)
        arrival = "never" if epochs == math.inf else f"{share:.0%}{', then worse' if colour == WORSE else ''}"
        left.text(100 * share + 2, y, arrival, va="center", fontsize=8)
        if each:
            mean = math.exp(statistics.fmean(map(math.log, each)))
            right.plot([1, mean], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
            right.plot(each, [y] * len(each), "o", color=colour, markersize=4.5, markeredgecolor="white", markeredgewidth=0.6)
    left.set_yticks(range(len(shown)), [TASKS[section.task].title for section, _ in shown])
    left.set_xlim(0, 116)
    left.set_xticks(range(0, 101, 25))
    left.set_xlabel("validation: steps to AdamW's last result, in % of all", fontsize=8)
    right.set_yticks(range(len(shown)), [])
    right.set_xscale("log")
    log_ticks(right.xaxis, *right.get_xlim())
    right.set_xlabel("test: last loss or error, AdamW's = 1, log scale; left is better", fontsize=8)
    for axes, theirs in ((left, 100), (right, 1)):
        axes.axvline(theirs, color=style(REFERENCE).light, linewidth=1.2, linestyle="--")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        finish(axes)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    words = f"{label(OURS)}, untouched, against AdamW at its best (dashed)"
    key = (
        "left: the median seed; right: seeds and their geometric mean\n"
        "black: better with every seed, orange: worse with every seed, light grey: neither"
    )
    figure.suptitle(f"{words}\n{key}", fontsize=9)
    return figure


def ranks_figure(outcomes: Sequence[Outcome]) -> Figure | None:
    """A panel for each table: every rank as a dot, the mean as a bar."""
    ranked = [of for of in outcomes if of.ranking is not None]
    if not ranked:
        return None
    figure, panels = grid(1, len(ranked))
    rows = max(len(of.league.optimizers) for of in ranked)
    figure.set_size_inches(4.8 * len(ranked), 0.29 * rows + 1.5)
    for axes, of in zip(panels, ranked, strict=True):
        assert of.ranking is not None
        standings, elsewhere = of.ranking.standings, mean_ranks(of, developed=False)
        for y, standing in enumerate(standings):
            name = standing.variants[0].optimizer
            colour = style(name).light if name in (OURS, REFERENCE) else "0.55"  # twelve colours would not tell twelve apart
            axes.barh(y, standing.mean_rank - 1, left=1, color=colour, alpha=0.9 if name == OURS else 0.35, height=0.7)
            ties: dict[float, int] = {}
            for place in standing.ranks:
                ties[place] = ties.get(place, 0) + 1
            for place, many in ties.items():
                axes.plot([place], [y], "o", color=colour, markersize=2.5 + 1.5 * math.sqrt(many), markeredgecolor="white",
                          markeredgewidth=0.6)  # fmt: skip
            means = f"{standing.mean_rank:.1f}" + (f" ({elsewhere[standing.label]:.1f})" if elsewhere else "")
            axes.text(len(standings) + 0.8, y, means, va="center", ha="left", fontsize=8)
        axes.set_yticks(range(len(standings)), [standing.label for standing in standings])
        axes.set_ylim(len(standings) - 0.4, -0.6)
        axes.set_xlim(0.6, len(standings) + 0.4)
        axes.set_xticks([1, *range(3, len(standings) + 1, 3)])
        axes.set_xlabel("rank; 1 is the best", fontsize=8)
        partial = f"; {count(of.missing, 'run')} to come" if of.missing else ""
        judges = sum(section.task not in DEVELOPED for section in of.ranking.sections)
        tasks = f"{count(len(of.ranking.sections), 'task')}{f' ({judges})' if elsewhere else ''}"
        axes.set_title(f"{of.stage}, {tasks}{partial}", loc="left", fontsize=9)
        finish(axes)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(
        "Ranks by the test result\ndots: tasks (larger: several); bars and numbers: the mean (in parentheses: over tasks that "
        f"had no part in choosing {label(OURS)}'s constants)",
        fontsize=9,
    )
    return figure


def curves_figure(of: Outcome) -> Figure | None:
    """The validation metric of a few, a panel for each task, with AdamW's result as a line."""
    shown = [(section, [v for name in DRAWN if (v := variant(section, name)) is not None]) for section in of.sections]
    shown = [(section, variants) for section, variants in shown if variants]
    if not shown:
        return None
    figure, panels = grid(math.ceil(len(shown) / COLUMNS), min(COLUMNS, len(shown)))
    for axes, (section, variants) in zip(panels, shown, strict=False):
        draw_curves(axes, variants, section.metric, over_time=False, title=False)
        if section.aim is not None:
            axes.axhline(section.aim, color="0.5", linewidth=0.8, linestyle=":", zorder=0)
        unit = f" [{section.metric.unit}]" if section.metric.unit else ""
        axes.set_title(section.title, loc="left", fontsize=9)
        axes.set_ylabel(f"{section.metric.title.removeprefix('test ')}{unit}", fontsize=8)
        axes.set_xlabel("epoch", fontsize=8)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    words = bands_words([v for _, variants in shown for v in variants])
    best = "at its best" if of.stage == HEADLINE_STAGE else "tuned"
    note = f"Validation data, {of.stage}. {words} Grey dots: {label(REFERENCE)}, {best}, after its last epoch."
    add_legend(figure, panels, COLUMNS, note)
    return figure
