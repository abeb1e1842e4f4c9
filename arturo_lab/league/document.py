"""The league as one document and one page: tables, figures, how to read them, what made them."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from arturo_lab.league.ablation import ABLATION_TASKS
from arturo_lab.league.field import DEVELOPED, OURS, REFERENCE, VALIDATION, League, label
from arturo_lab.league.figures import DRAWN, curves_figure, headline_figure, ranks_figure
from arturo_lab.league.results import (
    Outcome,
    headline,
    judged_on_validation,
    mean_ranks,
    outcome,
    standings,
    targets,
    variant,
    versus,
)
from arturo_lab.league.rows import Rows
from arturo_lab.league.stages import SLOTS, at_defaults
from arturo_lab.league.tables import (
    HEADLINE,
    ablation_table,
    ahead,
    headline_table,
    losses_table,
    results_table,
    settings_table,
    tasks_table,
    times_table,
)
from arturo_lab.report import sweep
from arturo_lab.report.across import profiles_table, ranks_table
from arturo_lab.report.comparison import Difference
from arturo_lab.report.document import Document, Part
from arturo_lab.report.evidence import sign_test
from arturo_lab.report.page import page
from arturo_lab.report.plots import profiles_figure, save
from arturo_lab.report.ranking import rank
from arturo_lab.report.tables import environment_table
from arturo_lab.report.wording import count, p_value
from arturo_lab.report.writers import html
from arturo_lab.runs import atomic

NAME = "league"
PAGE_DPI = 120  # of the figures inside the page


def document(league: League, rows: Rows, command: str, costs: Mapping[str, float] | None = None) -> Document:
    """All parts that the rows have something for; ``costs`` are those of :func:`step_costs`."""
    aims = targets(league, rows)
    outcomes = [outcome(league, rows, stage, aims) for stage in ("untouched", "tuned")]
    shown = [of for of in outcomes if of.sections]
    parts = [Part("", (introduction(league),)), *headline_parts(league, rows, costs or {})]
    if shown:
        played = [of for of in shown if OURS in of.present]
        parts += [Part(f"{of.stage.capitalize()}: where {label(OURS)} loses", losses(of), losses_table(of)) for of in played]
        parts.append(Part("Ranks", (), None, (), ranks_figure(shown), "ranks"))
    for of in shown:
        parts.append(Part(f"{of.stage.capitalize()}", (about(of),), results_table(of)))
        if of.ranking is not None:
            parts.append(Part(f"{of.stage.capitalize()}: ranks", judged(of), ranks_table(of.ranking, of.aimed)))
        if aims:
            parts.append(Part(f"{of.stage.capitalize()}: time to {label(REFERENCE)}'s tuned result", (), times_table(of)))
        if of.ranking is not None and of.aimed:
            picture = profiles_figure(of.ranking, DRAWN)
            heading = f"{of.stage.capitalize()}: performance profiles"
            parts.append(Part(heading, (), profiles_table(of.ranking), (), picture, f"profiles-{of.stage}"))
        parts.append(Part(f"{of.stage.capitalize()}: curves", (), None, (), curves_figure(of), f"curves-{of.stage}"))
    if any(of.stage == "tuned" for of in shown):
        parts.append(Part("Chosen values", (), settings_table(league, rows)))
    parts += sweep_parts(league, rows)
    parts += ablation_parts(league, rows)
    parts.append(Part("The tasks", (), tasks_table(league)))
    if rows.records:
        parts.append(Part("Environments", (), environment_table(list(rows.records.values()))))
    facts = {"tasks": list(league.tasks), "optimizers": list(league.optimizers), "targets": aims}
    parts = [replace(part, shown=in_terminal(part)) for part in parts if not empty(part)]
    return Document(NAME, "The league", command, tuple(parts), facts)


def in_terminal(part: Part) -> bool:
    """Whether a terminal has room for it: who loses where, and the ranks."""
    return part.table is not None and (
        part.heading == HEADLINE or part.table.name == "ranks" or part.table.name.endswith("-losses")
    )


def empty(part: Part) -> bool:
    return not part.paragraphs and part.table is None and part.figure is None


def introduction(league: League) -> str:
    return (
        f"{len(league.optimizers)} optimizers on {len(league.tasks)} tasks. **Untouched**: everybody at the defaults of its "
        f"package or authors. **Tuned**: everybody gets {league.trials} trials on each task, the same quasi-random points, "
        "mapped into its own range of step, memory and decay, the first being the untouched values; each trial is trained for "
        f"{league.fidelity:.0%} of the epochs, and the best on validation data (part {VALIDATION} of the training examples, "
        f"never trained on) is trained at full length with {league.seeds} seeds. Curves and choices see validation data alone; "
        "the test set is looked at once by each run in the tables of results. No task is left out because of its result; "
        "missing and partial results are marked. docs/league.md has the details."
    )


def about(of: Outcome) -> str:
    if of.stage == "untouched":
        return "Nobody is tuned: lr, momentum and decay are what the package or its authors set."
    return "Everybody is tuned with the same number of trials of the same length, at the same points of the unit cube."


def headline_parts(league: League, rows: Rows, costs: Mapping[str, float]) -> list[Part]:
    of = headline(league, rows)
    if of is None or not of.sections:
        return []
    return [
        Part(HEADLINE, (decided(of),), headline_table(of, costs), (), headline_figure(of), "at-a-glance"),
        Part(f"{HEADLINE}: curves", (), None, (), curves_figure(of), "curves-best"),
    ]


def decided(of: Outcome) -> str:
    """On which tasks AdaArturo is better and worse with every seed, and which are open."""
    seeds = of.league.seeds
    missing = [
        t
        for t in of.league.tasks
        if t in of.searching or (difference := versus(of.section(t))) is None or difference.pairs < seeds
    ]
    known_tasks = [t for t in of.league.tasks if t not in missing]
    better, worse = ([t for t in known_tasks if ahead(of.section(t), name, seeds)] for name in (OURS, REFERENCE))
    rest = [t for t in known_tasks if t not in (*better, *worse)]
    counted = {"better with every seed": better, "worse with every seed": worse, "neither": rest}
    words = [f"{how} on {len(tasks)} ({', '.join(tasks)})" for how, tasks in counted.items() if tasks]
    complete = f"Complete: {len(known_tasks)} of {len(of.league.tasks)} tasks."
    if not words:
        return complete
    known = {t: difference for t in known_tasks if (difference := versus(of.section(t))) is not None}
    judges = {t: difference for t, difference in known.items() if t not in DEVELOPED}
    p = f"Over the tasks: {tasks_p(known.values())} by a sign test"
    if 0 < len(judges) < len(known):
        p += f"; over the {len(judges)} that had no part in choosing its constants: {tasks_p(judges.values())}"
    return f"{complete} {label(OURS)} is {'; '.join(words)}. {p}."


def tasks_p(differences: Collection[Difference]) -> str:
    """Of "either is as likely to be ahead on a task", by more seeds than the other."""
    ahead_on = sum(difference.won > difference.lost for difference in differences)
    behind_on = sum(difference.won < difference.lost for difference in differences)
    return p_value(sign_test(ahead_on, behind_on), len(differences))


def losses(of: Outcome) -> tuple[str, ...]:
    """On how many tasks AdaArturo is first of all, and of those that have a result so far; where somebody is ahead, and who."""
    first, shared, so_far, behind = 0, [], [], []
    for section in of.sections:
        ours = variant(section, OURS)
        if ours is None:
            continue
        ranked = standings(section)
        mine = next(each for each in ranked if each.optimizer == OURS)
        better = [each.label for each in ranked if each.standing < mine.standing]
        equal = [each.label for each in ranked if each.standing == mine.standing and each is not mine]
        if better:
            names = ", ".join(better[:3]) + (f" and {len(better) - 3} more" if len(better) > 3 else "")
            behind.append(f"{section.task} (rank {rank(mine, ranked):g} of {len(ranked)}; ahead: {names})")
        elif section in of.complete:
            first += not equal
            shared += [f"{section.task} (with {', '.join(equal)})"] if equal else []
        else:
            so_far.append(f"{section.task} ({len(ranked)})")
    words = [f"On {count(len(of.complete), 'task')} all {len(of.league.optimizers)} optimizers have a result"]
    words[0] += f"; {label(OURS)} is first on {first}." if of.complete else "."
    if shared:
        words.append(f"It shares the first place on {', '.join(shared)}.")
    if so_far:
        words.append(f"It is first of those that have a result so far on {', '.join(so_far)}.")
    if behind:
        words.append(f"It is behind on {'; '.join(behind)}.")
    return (" ".join(words),)


def judged(of: Outcome) -> tuple[str, ...]:
    """The mean ranks on the tasks on which AdaArturo's constants were chosen, and on the others."""
    words = []
    for which, developed in ((f"{label(OURS)}'s constants were chosen", True), ("they were not", False)):
        means = mean_ranks(of, developed)
        many = count(sum((section.task in DEVELOPED) == developed for section in of.complete), "task")
        words.append(
            f"Over the {many} on which {which}: {', '.join(f'{name} {m:.2f}' for name, m in list(means.items())[:5])}."
        )
        if not means:
            return ()
    return (f"Mean ranks, the best five. {' '.join(words)}",)


def sweep_parts(league: League, rows: Rows) -> list[Part]:
    """The learning-rate picture."""
    slots = list(SLOTS["sweep"](league, rows))
    judged = judged_on_validation([slot.config for slot in slots if slot.config is not None], rows, loss=True)
    parts = []
    for section in judged:
        lines = sweep.curves(section)
        done, whole = len(section.runs), sum(slot.task == section.task for slot in slots)
        partial = (f"Partial: {done} of {whole} runs.",) if done < whole else ()
        picture = sweep.figure(section, lines)
        parts.append(
            Part(
                f"Learning rates: {section.task}",
                partial,
                sweep.sweep_table(section, lines),
                (),
                picture,
                f"sweep-{section.task}",
            )
        )
    return parts


def ablation_parts(league: League, rows: Rows) -> list[Part]:
    slots = list(SLOTS["ablation"](league, rows))
    tasks = [task for task in ABLATION_TASKS if task in league.tasks]
    ours = [at_defaults(league, task, OURS, seed) for task in tasks for seed in range(league.seeds)]
    configs = [slot.config for slot in slots if slot.config is not None]
    if not any(rows.fresh(config) for config in configs):
        return []
    return [Part("Ablation", (), ablation_table(league, judged_on_validation([*ours, *configs], rows)))]


def write(made: Document, folder: Path) -> list[Path]:
    """league.md, league.json, the figures as PNG, and index.html."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{NAME}.md", folder / f"{NAME}.json", folder / "index.html"]
    atomic.write(paths[0], made.markdown().encode())
    atomic.write_json(paths[1], made.json())
    atomic.write(paths[2], html_page(made).encode())
    for part in made.parts:
        if part.figure is not None:
            paths += save(part.figure, folder / made.stem(part), kinds=("png",), dpi=130)
    return paths


def html_page(made: Document) -> str:
    parts = [
        {
            "heading": part.heading,
            "paragraphs": [bold(text) for text in part.paragraphs],
            "table": None if part.table is None else html(part.table),
            "image": None if part.figure is None else image(part.figure),
        }
        for part in made.parts
    ]
    return page(
        "league.html", ("base.css", "report.css", "league.css"), ("tables.js", "theme.js"), {}, title=made.title,
        command=made.command, parts=parts,
    )  # fmt: skip


def image(figure: Figure) -> str:
    """As an address that holds it."""
    raw = io.BytesIO()
    figure.savefig(raw, dpi=PAGE_DPI, format="png", metadata={"Software": None})
    return f"data:image/png;base64,{base64.b64encode(raw.getvalue()).decode()}"


def bold(text: str) -> Markup:
    """The little Markdown that our paragraphs have."""
    pieces = str(escape(text)).split("**")
    return Markup("".join(f"<strong>{piece}</strong>" if i % 2 else piece for i, piece in enumerate(pieces)))
