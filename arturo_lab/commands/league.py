"""``arturo league``: many optimizers on many tasks, untouched and tuned, resumed over days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.many import shown
from arturo_lab.commands.options import DataSource, check_out
from arturo_lab.commands.planning import duration
from arturo_lab.errors import ConfigError
from arturo_lab.fields import group, option
from arturo_lab.league.ablation import ABLATIONS, FILE, entries
from arturo_lab.league.document import document, write
from arturo_lab.league.field import ENTRANTS, SECONDS, League
from arturo_lab.league.results import step_costs
from arturo_lab.league.rows import Rows, other_laboratory
from arturo_lab.league.stages import STAGES
from arturo_lab.league.work import Progress, progress, unused, why_stale, work
from arturo_lab.registry import unknown
from arturo_lab.report.table import Cell, Column, Table
from arturo_lab.report.wording import count
from arturo_lab.report.writers import show
from arturo_lab.runs.compact import NAME
from arturo_lab.runs.machine import MOST_THREADS

DESCRIPTION = (
    "Train many optimizers on many tasks: untouched, at their own defaults, and tuned, each with the same trials on validation "
    "data; the test set is looked at once, by the runs that count. Every run that ends is kept in OUT/runs.jsonl, and what is "
    "there is not trained again: stop it at any time, and run the same command to resume. docs/league.md says how it is fair."
)
EXAMPLES = """
arturo league --plan
arturo league
arturo league --only adaarturo byte-gru --stage untouched
arturo league --tasks digits-mlp diabetes-mlp --optimizers adamw-warmup adaarturo --trials 4
arturo league --report
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    tasks: tuple[str, ...] = option(tuple(SECONDS), "the tasks of the league, cheapest first", metavar="TASK")
    optimizers: tuple[str, ...] = option(ENTRANTS, "the optimizers of the league", metavar="NAME")
    stage: tuple[str, ...] = option((), f"train only these stages: {', '.join(STAGES)} (default: all)", metavar="STAGE")
    only: tuple[str, ...] = option((), "train only these optimizers and tasks now; the tables keep all", metavar="NAME")
    seeds: int = option(3, "seeds of every result", metavar="N", lowest=1, highest=100)
    trials: int = option(8, "configurations each optimizer may try on each task", metavar="T", lowest=1, highest=1000)
    fidelity: float = option(1 / 3, "share of a task's epochs that a trial is trained for", metavar="F", lowest=0, highest=1)
    plan: bool = option(False, "only show what is done, what is missing and how long it takes")
    report: bool = option(False, "do not train; make tables, figures and page from the rows there are")
    jobs: int = option(2, "trainings at the same time", metavar="K", lowest=1)
    threads: int = option(1, "CPU threads of each training", metavar="N", lowest=1, highest=MOST_THREADS)
    out: Path = option(Path("results/league"), "folder for runs.jsonl, tables, figures and page", metavar="DIR")
    work: Path | None = option(
        None, "folder for the checkpoints of runs under way (default: runs/league; with another --out OUT/work)", metavar="DIR"
    )
    data: DataSource = group(DataSource, "data")

    @property
    def folder(self) -> Path:
        """For the checkpoints: two leagues do not take each other's runs over."""
        return self.work or (Path("runs/league") if self.out == Path("results/league") else self.out / "work")


def run(options: Options, argv: Sequence[str]) -> int:
    console = Console()
    for stage in options.stage:
        if stage not in STAGES:
            raise unknown("stage", stage, STAGES)
    if "ablation" in options.stage and not entries():
        raise ConfigError(f"stage: ablation needs {FILE}; run it from the root of the repository")
    league = League(
        tuple(options.tasks), tuple(options.optimizers), options.seeds, options.trials, options.fidelity, options.threads
    )
    for name in options.only:
        if name not in (*league.optimizers, *league.tasks, *ABLATIONS):
            raise unknown("only", name, (*league.optimizers, *league.tasks))
    stages = [stage for stage in STAGES if not options.stage or stage in options.stage]
    rows = Rows.read(options.out / NAME)
    if options.plan:
        show_plan(league, rows, stages, options, console)
        return 0
    check_out(options.out)
    code = 0
    if not options.report:
        check_out(options.folder, "work")
        code = work(league, rows, options.folder, options.jobs, stages, options.only, options.data, argv, console)
        if code > 1:  # interrupted: there is more to come
            return code
    if not rows.records:
        raise ConfigError(f"out: {options.out / NAME} has no runs yet; leave out --report to train some")
    made = document(league, rows, shown(words_that_matter(argv)), step_costs(options.out))
    made.show(console)
    for path in write(made, options.out):
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)
    return code


def words_that_matter(argv: Sequence[str]) -> list[str]:
    """The command that makes the document: without what only says where and when to train."""
    words = [word for word in argv if word not in ("--report", "--plan")]
    for option_name in ("--work", "--jobs"):
        while option_name in words:
            at = words.index(option_name)
            del words[at : at + 2]
    return [*words, "--report"]


def show_plan(league: League, rows: Rows, stages: Sequence[str], options: Options, console: Console) -> None:
    states = progress(league, rows, stages, options.only)
    show(plan_table(states, options.jobs), console)
    for reason, many in why_stale(league, rows, stages).items():
        console.print(f"stale, {count(many, 'row')} of {reason}", highlight=False, markup=False)
    if other := unused(league, rows):
        console.print(f"{count(other, 'row')} of other settings or rules, in no table", highlight=False)
    if changed := sum(map(other_laboratory, rows.records.values())):
        console.print(
            f"{count(changed, 'row')} made with other code around the training loop; they count. If that changed what is "
            "trained, raise RULES in arturo_lab/league/field.py",
            highlight=False,
        )


def plan_table(states: Sequence[Progress], jobs: int) -> Table:
    columns = (
        Column("stage", align="left"),
        Column("runs"),
        Column("done"),
        Column("stale"),
        Column("missing"),
        Column("waiting"),
        Column("one core", key="seconds"),
        Column(f"{jobs} at once", key="seconds_at_once"),
    )
    totals = {
        name: sum(getattr(state, name) for state in states) for name in ("done", "stale", "missing", "waiting", "seconds")
    }
    total = Progress(stage="all", **totals)
    rows = []
    for state in (*states, *([total] if len(states) > 1 else [])):
        counts = (state.runs, state.done, state.stale, state.missing, state.waiting)
        times = (state.seconds, state.seconds / jobs)
        rows.append(
            (
                Cell(state.stage),
                *(Cell(str(n), n) for n in counts),
                *(Cell(duration(t) if state.missing else "-", t) for t in times),
            )
        )
    notes = (
        "Waiting: for the trials that choose their values. Times are of runs that are over, of the same task and optimizer, "
        "else of the same task, else rough guesses. A tuned configuration that is the untouched one is trained once.",
    )
    return Table("plan", "The league", columns, tuple(rows), notes)
