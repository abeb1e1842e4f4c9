"""``arturo tune``: search an optimizer's hyperparameters by cross-validation."""

from __future__ import annotations

import importlib
import importlib.util
import math
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from arturo_lab.commands.fetch import provide
from arturo_lab.commands.many import open_pool, shown
from arturo_lab.commands.options import DataSource, LogTo, PoolSize
from arturo_lab.commands.planning import Plan, PlannedRuns, Planning
from arturo_lab.data.examples import Examples
from arturo_lab.errors import ConfigError
from arturo_lab.fields import REQUIRED, flat, group, option
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.config_file import write_config_file
from arturo_lab.paper.scales import SCALES
from arturo_lab.pool.cost import costs_of, kind_of
from arturo_lab.pool.workers import threads_of_each
from arturo_lab.references import folder_name
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training import loggers
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.train import available
from arturo_lab.tuning.protocols import CHEAP, PROTOCOLS, Protocol, Search

if TYPE_CHECKING:
    from arturo_lab.tuning.outcome import TrialRow
    from arturo_lab.tuning.trial import Trainer

DESCRIPTION = "Search an optimizer's hyperparameters by cross-validation; the test set is used once, at the end."
EXAMPLES = """
arturo tune digits-cnn --protocol fair --optimizer adamw
arturo tune fmnist-cnn --optimizer arturo --trials 50 --folds 8 --seeds 3 --out runs/tune/fmnist-cnn-arturo.json
arturo tune digits-mlp --protocol fair --studies 1 --epochs 5 --cross runs/tune/digits-cnn-arturo.json
arturo tune fmnist-cnn --storage postgresql://user@host/database --worker
"""


def defaults(name: str) -> str:
    """What each protocol does by default.

    Example:
        >>> defaults("folds")
        'default: paper 8, fair 5'
    """
    values = {key: getattr(protocol, name) for key, protocol in PROTOCOLS.items()}
    return "default: " + ", ".join(f"{key} {value}" for key, value in values.items())


@dataclass(frozen=True)
class Effort:
    """How a search is done; what is None is the protocol's."""

    protocol: str = option("paper", " or ".join(PROTOCOLS), metavar="NAME")
    trials: int | None = option(None, f"configurations to try ({defaults('trials')})", metavar="T", lowest=1)
    folds: int | None = option(None, f"parts of the training images ({defaults('folds')})", metavar="F", lowest=2)
    seeds: int | None = option(None, f"seeds for each fold ({defaults('seeds')})", metavar="S", lowest=1, highest=10_000)
    studies: int | None = option(
        None, "independent studies (default: paper 1, fair 3 on digits, else 1)", metavar="N", lowest=1
    )
    prune: bool | None = option(None, "stop hopeless configurations before their last fold (default: paper no, fair yes)")
    space: tuple[str, ...] = option(
        (), "what to search instead of the protocol's space, e.g. lr=1e-4:1e-1:log weight_decay=0:0.1", metavar="NAME=LOW:HIGH"
    )
    cross: tuple[Path, ...] = option((), "also judge the winners of these searches on other tasks", metavar="FILE")
    test_seeds: int = option(3, "number of seeds to test the winner with; 0 postpones the test", metavar="N", lowest=0)

    @property
    def rules(self) -> Protocol:
        return PROTOCOLS[self.protocol]

    @property
    def pruned(self) -> bool:
        """Whether hopeless configurations are given up early."""
        return self.rules.prune if self.prune is None else self.prune

    @property
    def trial_count(self) -> int:
        return self.trials or self.rules.trials


@dataclass(frozen=True)
class StudyOptions:
    """Where the study is kept."""

    storage: str | None = option(None, "database URL in Optuna's form (default: a SQLite file in FILE's folder)", metavar="URL")
    worker: bool = option(False, "only run trials; another process writes FILE")
    heartbeat: int = option(
        15, "seconds between signs of life; after four missed ones a worker is considered dead", metavar="S", lowest=1
    )
    dashboard: bool = option(False, "do not search; open the study in optuna-dashboard")


@dataclass(frozen=True, kw_only=True)
class Options:
    task: str = option(REQUIRED, "one of `arturo list`", metavar="TASK", positional=True)
    optimizer: str = option("arturo", "one of `arturo list`, file.py:Class, package.module:Class or po:Name", metavar="NAME")
    out: Path | None = option(
        None,
        "result file, for `arturo train --config` (default: runs/tune/TASK-OPTIMIZER.json); everything else goes to the "
        "folder of that name without .json",
        metavar="FILE",
    )
    effort: Effort = group(Effort, "the search")
    scale: str = option("full", "full, or cpu: reduced as `arturo reproduce --scale cpu` reduces it", metavar="NAME")
    share: Share = group(Share, "the task", leave_out=("fold", "validation"))
    machine: Machine = group(Machine, "the machine", leave_out=("parallel",))
    pool: PoolSize = group(PoolSize, "")
    data: DataSource = group(DataSource, "data and records")
    logging: LogTo = group(LogTo, "")
    planning: Planning = group(Planning, "")
    study: StudyOptions = group(StudyOptions, "the study")

    @property
    def file(self) -> Path:
        return self.out or Path("runs/tune") / f"{folder_name(self.task)}-{folder_name(self.optimizer)}.json"


def run(options: Options, argv: Sequence[str]) -> int:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tune: needs Optuna; to install it: pip install 'arturo[tune]'")
    console = Console()
    from arturo_lab.tuning.result import check_out

    loggers.check(options.logging.log)
    studies = searches(options)
    file = options.file
    folder = file.with_suffix("")
    if file.suffix != ".json":
        raise ConfigError(f"out: must be the name of a file that ends with .json, got {file}")
    check_out(file, studies[0])
    url = options.study.storage or f"sqlite:///{folder / 'study.db'}"
    if options.study.dashboard:
        return dashboard(url)
    alone = options.pool.ray is None and options.pool.jobs in (None, 1)
    if options.pool.ray is None:
        available(options.machine.device)
    data = provide(TASKS[options.task].data, options.data, console)
    if not plan(options, studies, data).approved(options.planning, console):
        return 0

    from arturo_lab.tuning.trial import training

    with interruptible() as stop, open_pool(options.pool, studies[0].configs({}, fold=1)) as pool:
        log = loggers.chosen(options.logging.log, folder)
        trainer = training(None if alone else pool.train_all, pool.jobs, options.data.data_dir, stop, log)
        try:
            rows = search_all(options, studies, url, trainer, pool.jobs, console)
            if not options.study.worker:
                conclude(options, argv, studies, rows, trainer, console)
        except KeyboardInterrupt:
            print(f"arturo: interrupted; to resume: {shlex.join(['arturo', *argv])}", file=sys.stderr)
            return stop.exit_code
    return 0


def plan(options: Options, studies: Sequence[Search], data: Examples) -> Plan:
    """What the search takes at most; a study that is resumed or that gives configurations up early takes less."""
    from arturo_lab.tuning.outcome import read_rows

    search, effort, folder = studies[0], options.effort, options.file.with_suffix("")
    judged, tested = search.config({}, 0, f"1/{search.folds}"), search.config({}, 0, fold=None)
    jobs, rows = options.pool.jobs or 1, folder / "trials.jsonl"  # what an earlier command finished
    trials = max(len(studies) * effort.trial_count - (len(read_rows(rows)) if rows.exists() else 0), 0)
    runs, tests = trials * search.folds * search.seeds, effort.test_seeds if trials else 0
    measure = {TASKS[options.task].data: data} if runs and options.pool.ray is None else {}
    costs = costs_of([judged], folder / "scratch", measure, threads_of_each(jobs))
    if judged_cost := costs.get(kind_of(judged)):  # a test trains on all images; it is not measured on test images
        costs[kind_of(tested)] = judged_cost.longer(tested.steps_per_epoch / judged.steps_per_epoch)
    groups = [
        PlannedRuns(judged, runs, runs * judged.epochs, kept=jobs, jobs=jobs),
        PlannedRuns(tested, tests, tests * tested.epochs, kept=tests, jobs=jobs),
    ]
    return Plan(groups, costs, options.file.parent, at_most=True)


def searches(options: Options) -> list[Search]:
    """The studies to do, checked before the first one runs."""
    task, effort = TASKS[options.task], options.effort
    scaled = flat(SCALES[options.scale].tasks.get(options.task, Share()))
    chosen = {key: value for key, value in flat(options.share).items() if value is not None}
    own = {"epochs": scaled["epochs"] or task.epochs, "batch_size": task.batch_size}
    return [
        Search(
            options.task,
            options.optimizer,
            effort.protocol,
            effort.folds or effort.rules.folds,
            effort.seeds or effort.rules.seeds,
            Share(**{**scaled, **own, **chosen}),
            study,
            options.machine,
            effort.space,
        )
        for study in range(effort.studies or (effort.rules.studies if task.data in CHEAP else 1))
    ]


def search_all(
    options: Options, searches: Sequence[Search], url: str, trainer: Trainer, at_once: int, console: Console
) -> list[TrialRow]:
    """Every study until its last trial. All rows."""
    from arturo_lab.tuning.display import SearchDisplay
    from arturo_lab.tuning.result import winners_elsewhere
    from arturo_lab.tuning.search import work
    from arturo_lab.tuning.study import open_storage

    first, effort, trials = searches[0], options.effort, options.effort.trial_count
    crossed = winners_elsewhere(effort.cross, first)
    folder = options.file.with_suffix("")
    if options.study.storage is None:
        folder.mkdir(parents=True, exist_ok=True)
    title = (
        f"{first.task}, {OPTIMIZERS[first.optimizer].label}, protocol {first.protocol}: {trials} trials of {first.folds} folds"
        f" x {first.seeds} seeds x {first.share.epochs} epochs" + (f", {len(searches)} studies" if len(searches) > 1 else "")
    )
    rows: list[TrialRow] = []
    with (
        open_storage(url, options.study.heartbeat) as storage,
        SearchDisplay(title, trials * len(searches) + len(crossed), console, TASKS[first.task].metric) as display,
    ):
        for search in searches:
            rows += work(
                storage,
                search,
                trials,
                trainer,
                folder / "scratch",
                prune=effort.pruned,
                at_once=math.ceil(at_once / first.seeds),
                crossed=crossed if search.study == 0 else {},
                on_trials=display.on_trials,
            )
    return rows


def conclude(
    options: Options, argv: Sequence[str], searches: Sequence[Search], rows: list[TrialRow], trainer: Trainer, console: Console
) -> None:
    """Test the winner, write everything, print the result."""
    from arturo_lab.tuning.figures import write_figures
    from arturo_lab.tuning.importance import importances
    from arturo_lab.tuning.outcome import edges, winner, write_rows
    from arturo_lab.tuning.result import config_file, tested, tested_before

    search, file, folder = searches[0], options.file, options.file.with_suffix("")
    best = winner(rows)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / "trials.jsonl")
    if best is None:
        raise ConfigError(f"trials: every one of {len(rows)} diverged; {folder / 'trials.jsonl'} lists them")
    test = tested_before(file)
    if test is not None and test["params"] != best.params:
        console.print("the test set has been used for an earlier winner; it is not used again", style="bold")
    elif options.effort.test_seeds:
        test = tested(search, best, options.effort.test_seeds, trainer, folder / "test")
    write_config_file(file, config_file(search, rows, best, shown(argv), test, options.effort.pruned))
    title = (
        f"{TASKS[search.task].title}, {OPTIMIZERS[search.optimizer].label}: {search.folds} folds, {search.share.epochs} epochs"
    )
    own, metric = [row for row in rows if not row.crossed], TASKS[search.task].metric
    write_figures(folder, search.optimizer, title, rows, search.space, importances(own, search.space), metric)
    shutil.rmtree(folder / "scratch", ignore_errors=True)

    values = ", ".join(f"{name} {value:.4g}" for name, value in best.params.items())
    score = f"validation {metric.name} {metric.text(metric.score(best.score))}"
    console.print(f"best: trial {best.slot}, {score}: {values}", highlight=False, markup=False, soft_wrap=True)
    for line in edges(search, best):
        console.print(f"at an edge: {line}", style="bold", highlight=False, markup=False, soft_wrap=True)
    if test is not None and test["params"] == best.params:
        error = f" ± {metric.text(test['doubled_error'])}" if test["doubled_error"] is not None else ""
        console.print(
            f"test {metric.name} {metric.text(test['mean'])}{error} ({test['n']} seeds)", highlight=False, markup=False
        )
    console.print(f"{file}; figures: {folder}", highlight=False, markup=False, soft_wrap=True)


def dashboard(url: str) -> int:
    """Serve Optuna's dashboard until Ctrl-C."""
    try:
        run_server = importlib.import_module("optuna_dashboard").run_server
    except ImportError as error:
        raise ConfigError("dashboard: needs optuna-dashboard; to install it: pip install optuna-dashboard") from error
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        raise ConfigError(f"dashboard: no study at {url} yet")
    print("http://127.0.0.1:8080/", flush=True)
    webbrowser.open("http://127.0.0.1:8080/")
    run_server(url, host="127.0.0.1", port=8080)
    return 0
