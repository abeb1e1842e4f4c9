"""``arturo tune``: search an optimizer's hyperparameters by cross-validation."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import shlex
import shutil
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from arturo_lab.commands.arguments import add_command, add_data, add_jobs, add_machine, add_scale, jobs, machine
from arturo_lab.commands.fetch import provide
from arturo_lab.commands.many import crew, shown
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.config_file import write_config_file
from arturo_lab.paper.scales import SCALES, Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.train import available
from arturo_lab.tuning.protocols import CHEAP, PROTOCOLS, Search

if TYPE_CHECKING:
    from arturo_lab.tuning.outcome import Row
    from arturo_lab.tuning.trial import Trainer


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "tune",
        "search an optimizer's hyperparameters by cross-validation; the test set is looked at once, at the end",
        """
        arturo tune digits-cnn --protocol fair --optimizer adamw
        arturo tune fmnist-cnn --optimizer arturo --trials 50 --folds 8 --seeds 3 --out runs/tune/fmnist-cnn-arturo.json
        arturo tune digits-mlp --protocol fair --studies 1 --epochs 5 --cross runs/tune/digits-cnn-arturo.json
        arturo tune fmnist-cnn --storage postgresql://user@host/database --worker
        """,
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    sub.add_argument("--optimizer", metavar="NAME", default="arturo", help="sgd, adam, adamw or arturo (default: arturo)")
    sub.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="what `arturo train --config` takes (default: runs/tune/TASK-OPTIMIZER.json); the rest goes to the folder FILE "
        "without .json",
    )

    how = sub.add_argument_group("the search")
    how.add_argument("--protocol", default="paper", metavar="NAME", help=f"{' or '.join(PROTOCOLS)} (default: paper)")
    for name, what in (("trials", "configurations"), ("folds", "parts of the training images"), ("seeds", "for each fold")):
        defaults = ", ".join(f"{key} {getattr(protocol, name)}" for key, protocol in PROTOCOLS.items())
        how.add_argument(f"--{name}", type=int, metavar=name[0].upper(), help=f"{what} (default: {defaults})")
    how.add_argument("--studies", type=int, metavar="N", help="independent ones (default: paper 1, fair 3 on digits, else 1)")
    how.add_argument(
        "--prune",
        action=argparse.BooleanOptionalAction,
        help="give hopeless configurations up before their last fold (default: paper no, fair yes)",
    )
    how.add_argument(
        "--cross",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="also judge what won in these searches, on other tasks",
    )
    how.add_argument("--test-seeds", type=int, default=3, metavar="N", help="of the winner's test (default: 3; 0: no test yet)")

    scale = sub.add_argument_group("the task")
    scale.add_argument("--scale", default="full", metavar="NAME", help="full, or cpu: as `arturo reproduce` cuts it down")
    add_scale(scale)

    where = sub.add_argument_group("the machine")
    add_machine(where)
    add_jobs(where)
    add_data(where)

    study = sub.add_argument_group("the study")
    study.add_argument("--storage", metavar="URL", help="a database as Optuna takes it (default: SQLite in FILE's folder)")
    study.add_argument("--worker", action="store_true", help="only take part in the trials; another process writes FILE")
    study.add_argument(
        "--heartbeat", type=int, default=15, metavar="S", help="seconds; silent four times as long, a worker is taken for dead"
    )
    study.add_argument("--dashboard", action="store_true", help="do not search, look at the study with optuna-dashboard")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tune: needs Optuna; to install it: pip install 'arturo[tune]'")
    console = Console()
    from arturo_lab.tuning.result import check_out

    found = searches(arguments)
    file = arguments.out or Path("runs/tune") / f"{arguments.task}-{arguments.optimizer}.json"
    folder = file.with_suffix("")
    if file.suffix != ".json":
        raise ConfigError(f"out: must be the name of a file that ends with .json, got {file}")
    check_out(file, found[0])
    url = arguments.storage or f"sqlite:///{folder / 'study.db'}"
    if arguments.dashboard:
        return dashboard(url)
    alone = arguments.ray is None and jobs(arguments) in (None, 1)
    if arguments.ray is None:
        available(arguments.device)
    provide(TASKS[arguments.task].data, arguments, console)

    from arturo_lab.tuning.trial import training

    with interruptible() as stop, crew(arguments, found[0].configs({}, fold=1)) as who:
        trainer = training(None if alone else who.train_all, who.jobs, arguments.data_dir, stop)
        try:
            rows = search_all(arguments, found, url, folder, trainer, who.jobs, console)
            if not arguments.worker:
                conclude(arguments, found, rows, file, trainer, console)
        except KeyboardInterrupt:
            again = shlex.join(["arturo", *arguments.argv])
            print(f"arturo: interrupted; the same command goes on: {again}", file=sys.stderr)
            return stop.exit_code
    return 0


def searches(arguments: argparse.Namespace) -> list[Search]:
    """The studies to do, checked before the first one runs."""
    task, protocol = TASKS[arguments.task], PROTOCOLS[arguments.protocol]
    share = SCALES[arguments.scale].tasks.get(arguments.task, Share())
    for key, lowest in (("trials", 1), ("studies", 1), ("test_seeds", 0), ("heartbeat", 1)):
        value = getattr(arguments, key)
        if value is not None and value < lowest:
            raise ConfigError(f"{key.replace('_', '-')}: must be an integer >= {lowest}, got {value}")
    studies = arguments.studies or (protocol.studies if task.data in CHEAP else 1)
    return [
        Search(
            arguments.task,
            arguments.optimizer,
            arguments.protocol,
            protocol.folds if arguments.folds is None else arguments.folds,
            protocol.seeds if arguments.seeds is None else arguments.seeds,
            arguments.epochs if arguments.epochs is not None else share.epochs or task.epochs,
            task.batch_size if arguments.batch_size is None else arguments.batch_size,
            share.subset if arguments.subset is None else arguments.subset,
            study,
            **machine(arguments),
        )
        for study in range(studies)
    ]


def pruned(arguments: argparse.Namespace) -> bool:
    """Whether hopeless configurations are given up early."""
    return bool(PROTOCOLS[arguments.protocol].prune if arguments.prune is None else arguments.prune)


def search_all(
    arguments: argparse.Namespace, found: list[Search], url: str, folder: Path, trainer: Trainer, at_once: int, console: Console
) -> list[Row]:
    """Every study until its last trial. All rows."""
    from arturo_lab.tuning.display import SearchDisplay
    from arturo_lab.tuning.result import winners_elsewhere
    from arturo_lab.tuning.search import work
    from arturo_lab.tuning.study import open_storage

    first, protocol = found[0], PROTOCOLS[arguments.protocol]
    trials = protocol.trials if arguments.trials is None else arguments.trials
    crossed = winners_elsewhere(arguments.cross, first)
    title = (
        f"{first.task}, {OPTIMIZERS[first.optimizer].label}, protocol {first.protocol}: {trials} trials of {first.folds} folds"
        f" x {first.seeds} seeds x {first.epochs} epochs" + (f", {len(found)} studies" if len(found) > 1 else "")
    )
    rows: list[Row] = []
    with (
        open_storage(url, arguments.heartbeat) as storage,
        SearchDisplay(title, trials * len(found) + len(crossed), console) as display,
    ):
        for search in found:
            rows += work(
                storage,
                search,
                trials,
                trainer,
                folder / "scratch",
                prune=pruned(arguments),
                at_once=math.ceil(at_once / first.seeds),
                crossed=crossed if search.study == 0 else {},
                on_trials=display.on_trials,
            )
    return rows


def conclude(
    arguments: argparse.Namespace, found: list[Search], rows: list[Row], file: Path, trainer: Trainer, console: Console
) -> None:
    """Test the winner, write everything, say it."""
    from arturo_lab.tuning.figures import write_figures
    from arturo_lab.tuning.importance import importances
    from arturo_lab.tuning.outcome import edges, winner, write_rows
    from arturo_lab.tuning.result import config_file, tested, tested_before

    search, folder = found[0], file.with_suffix("")
    best = winner(rows)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / "trials.jsonl")
    if best is None:
        raise ConfigError(f"trials: every one of {len(rows)} diverged; {folder / 'trials.jsonl'} lists them")
    test = tested_before(file)
    if test is not None and test["params"] != best.params:
        console.print("the test set was looked at before, for another winner: not again", style="bold")
    elif arguments.test_seeds:
        test = tested(search, best, arguments.test_seeds, trainer, folder / "test")
    write_config_file(file, config_file(search, rows, best, shown(arguments.argv), test, pruned(arguments)))
    title = f"{TASKS[search.task].title}, {OPTIMIZERS[search.optimizer].label}: {search.folds} folds, {search.epochs} epochs"
    own = [row for row in rows if not row.crossed]
    write_figures(folder, search.optimizer, title, rows, search.space, importances(own, search.space))
    shutil.rmtree(folder / "scratch", ignore_errors=True)

    values = ", ".join(f"{name} {value:.4g}" for name, value in best.params.items())
    console.print(f"best: trial {best.slot}, validation accuracy {best.score:.2%}: {values}", highlight=False, soft_wrap=True)
    for line in edges(search, best):
        console.print(f"at an edge: {line}", style="bold", highlight=False, soft_wrap=True)
    if test is not None and test["params"] == best.params:
        error = f" ± {100 * test['doubled_error']:.2f}" if test["doubled_error"] is not None else ""
        console.print(f"test accuracy {100 * test['mean']:.2f}{error} % ({test['n']} seeds)", highlight=False)
    console.print(f"{file}; figures: {folder}", highlight=False, soft_wrap=True)


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
