"""``arturo compare``: several optimizers on the same seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.many import RunSet, prepare, shown, train_many
from arturo_lab.commands.options import DataSource, Goal, LogTo, PoolSize
from arturo_lab.commands.planning import Planning
from arturo_lab.errors import RunError
from arturo_lab.fields import REQUIRED, flat, group, option
from arturo_lab.optimizers.catalog import PAPERS
from arturo_lab.report.comparison import check_reference
from arturo_lab.report.report import Report
from arturo_lab.report.sections import sections
from arturo_lab.runs.collection import read_all
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.plan import parse_overrides, parse_seeds, plan
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training import loggers

DESCRIPTION = (
    "Train several optimizers on the same seeds: same start, same batches, same dropout masks. Runs are the folders of "
    "`arturo train`, OUT/TASK/OPTIMIZER-seedS-HASH: a finished one is reused, an interrupted one is resumed. "
    "Ends with a table for each task and writes OUT/summary.json, OUT/report.html, OUT/figures/ and OUT/tables/."
)
EXAMPLES = """
arturo compare digits-mlp
arturo compare digits-mlp digits-cnn --seeds 5 --epochs 10 --jobs 2
arturo compare digits-mlp --optimizers sgd arturo --seeds 0,5,8 --set sgd.lr=0.05 arturo.kl_bound=0.1
arturo compare fmnist-cnn --optimizers adamw arturo --epochs 12 --subset 20000 --out runs/first-look
arturo compare fmnist-cnn cifar10-cnn --seeds 10 --ray auto
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    tasks: tuple[str, ...] = option(REQUIRED, "one or more of `arturo list`", metavar="TASK", positional=True)
    optimizers: tuple[str, ...] = option(PAPERS, "what to compare", metavar="NAME")
    seeds: str = option("3", "a count N for the seeds 0 to N-1, or the seeds themselves", metavar="N|A,B,C")
    out: Path = option(Path("runs"), "folder for runs and results", metavar="DIR")
    pool: PoolSize = group(PoolSize, "")
    planning: Planning = group(Planning, "")
    goal: Goal = group(Goal, "")
    share: Share = group(Share, "the tasks")
    set: tuple[str, ...] = option(
        (), "arguments of an optimizer, e.g. sgd.nesterov=true adamw.betas=0.9,0.99", metavar="OPTIMIZER.NAME=VALUE"
    )
    machine: Machine = group(Machine, "the machine", leave_out=("parallel",))
    data: DataSource = group(DataSource, "data and records")
    logging: LogTo = group(LogTo, "")


def run(options: Options, argv: Sequence[str]) -> int:
    console = Console()
    options.goal.check_target(any(TASKS[task].metric.percent for task in options.tasks))
    loggers.check(options.logging.log)
    configs = plan(
        options.tasks,
        options.optimizers,
        parse_seeds(options.seeds),
        overrides=parse_overrides(options.set, options.optimizers),
        **flat(options.share),
        **flat(options.machine),
    )
    check_reference(options.goal.against, options.optimizers)
    runs = RunSet(configs, options.out, options.pool)
    costs = prepare([runs], options.planning, options.data, console)
    if costs is None:
        return 0
    code = train_many(runs, costs, options.data, argv, console, loggers.chosen(options.logging.log, options.out))
    if code > 1:  # interrupted: there is more to come
        return code
    records, problems = read_all(configs, options.out)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    if not records:
        raise RunError(f"{options.out}: all runs failed")
    result = Report(sections(records), problems, shown(argv), options.goal.target, options.goal.against)
    result.show(console)
    console.print()
    result.write(options.out).say(console)
    return code
