"""The tables of a report on several tasks: who is ahead how often, how fast, and every mean on one page."""

from __future__ import annotations

from arturo_lab.report.ranking import CLOCKS, LARGEST_RATIO, Ranking
from arturo_lab.report.table import Cell, Column, Row, Table, number, with_best, words
from arturo_lab.report.wording import count

TAUS = (1.0, 1.5, 2.0, LARGEST_RATIO)
CLOCK_NAMES = {"seconds": "time", "epochs": "steps"}


def ranks_table(ranking: Ranking, profiles: bool = True) -> Table:
    """Wins, mean ranks, and, where there are targets, the scores of the profiles."""
    columns = (
        Column("optimizer", key="label", align="left"),
        Column("wins", better="higher"),
        Column("mean rank", better="lower"),
        Column("ranks", key="ranks_text"),
        Column("profile, time", key="profile_score_seconds", better="higher"),
        Column("profile, steps", key="profile_score_epochs", better="higher"),
        Column("diverged"),
    )
    rows: list[Row] = []
    for standing in ranking.standings:
        diverged = sum(len(variant.with_status("diverged")) for variant in standing.variants)
        runs = sum(len(variant.over) for variant in standing.variants)
        scores = (standing.profiles[clock].score for clock in CLOCKS)
        rows.append(
            (
                Cell(standing.label, standing.label, look=standing.look),
                Cell(str(standing.wins), standing.wins),
                Cell(f"{standing.mean_rank:.2f}", standing.mean_rank, fields={"ranks": list(standing.ranks)}),
                Cell(" ".join(f"{place:g}" for place in standing.ranks)),
                *(number(score, f"{score:.3f}") for score in scores),
                Cell(f"{diverged} of {runs}", diverged),
            )
        )
    notes = [
        f"Over {count(len(ranking.sections), 'task')}. A win is the best mean of a task, shared or not. Ranks go by the mean "
        "over the seeds that all of them have; a diverged run ranks below any number, and ties share their rank. Wins and "
        "ranks ignore the size of differences and the noise of seeds: see each task."
    ]
    if profiles:
        notes[0] += " The profile's score is its mean for τ from 1 to 4; 1 means the fastest to the target on every task."
    if ranking.missing:
        notes.append(f"Not on every task, so not ranked: {', '.join(ranking.missing)}.")
    title = f"All {count(len(ranking.sections), 'task')}: wins and ranks"
    table = Table("ranks", title, columns, with_best(columns, rows), tuple(notes))
    return table if profiles else table.without(lambda column: column.name.startswith("profile"))


def profiles_table(ranking: Ranking) -> Table:
    """The profiles at a few τ, of time and of steps."""
    columns = (
        Column("optimizer", key="label", align="left"),
        Column("to target in", key="clock", align="left"),
        *(Column(f"τ ≤ {tau:g}", key=f"within_{tau:g}", unit="%", better="higher") for tau in TAUS),
        Column("score", better="higher"),
    )
    rows: list[Row] = []
    for clock in CLOCKS:
        part: list[Row] = []
        for standing in ranking.standings:
            profile = standing.profiles[clock]
            ratios = [ratio if ratio != float("inf") else None for ratio in profile.ratios]
            name = Cell(standing.label, standing.label, look=standing.look, fields={"ratios": ratios})
            shares = (Cell(f"{100 * share:.0f}", share) for share in map(profile.share, TAUS))
            part.append((name, words(CLOCK_NAMES[clock]), *shares, Cell(f"{profile.score:.3f}", profile.score)))
        rows += with_best(columns, part)
    note = (
        "Share of the tasks on which an optimizer reaches the task's target within τ times the fastest's time (median "
        "over the seeds); "
        "the score is the mean over τ from 1 to 4. Within a task an epoch has the same number of steps for all, so ratios of "
        "epochs are ratios of steps."
    )
    return Table("profiles", "Performance profiles", columns, tuple(rows), (note,))


def results_table(ranking: Ranking) -> Table:
    """Every mean: a row for each optimizer, a column for each task."""
    columns = (
        Column("optimizer", key="label", align="left"),
        *(
            Column(
                s.title,
                key=f"task_{i}",
                unit=s.metric.unit or s.metric.title,
                better="higher" if s.metric.higher else "lower",
                wrap=True,
            )
            for i, s in enumerate(ranking.sections)
        ),
    )
    rows: list[Row] = []
    for standing in ranking.standings:
        cells = []
        for section, variant in zip(ranking.sections, standing.variants, strict=True):
            estimate, lost = variant.estimate, len(variant.with_status("diverged"))
            detail = f"{lost} diverged" if lost else ""
            fields = {f"{section.task}": None if estimate is None else estimate.mean}
            if estimate is None:
                cells.append(Cell("-", detail=detail, fields=fields))
            else:
                cells.append(
                    Cell(
                        section.metric.text(estimate.mean),
                        estimate.mean,
                        detail,
                        variant.label in {best.label for best in section.ranked_best},
                        fields,
                    )
                )
        rows.append((Cell(standing.label, standing.label, look=standing.look), *cells))
    return Table("results", "All results", columns, tuple(rows), ("Means over the seeds; the best of each task is bold.",))
