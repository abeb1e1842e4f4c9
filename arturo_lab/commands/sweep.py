"""``arturo sweep``: the result of optimizers over a range of learning rates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.many import RunSet, prepare, shown, train_many
from arturo_lab.commands.options import DataSource, PoolSize
from arturo_lab.commands.planning import Planning
from arturo_lab.errors import RunError
from arturo_lab.fields import REQUIRED, flat, group, option
from arturo_lab.report.sections import sections
from arturo_lab.report.sweep import document, parse_range
from arturo_lab.runs.collection import read_all
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.plan import once, parse_overrides, parse_seeds, plan
from arturo_lab.runs.share import Share

DESCRIPTION = (
    "Train each optimizer at learning rates evenly spaced on a log scale and show how the result depends on them. Runs are "
    "the folders of `arturo train`: finished ones are reused, interrupted ones resumed. Writes OUT/sweep-TASK.md, .json, .csv, "
    ".tex, .png and .pdf (of several tasks: OUT/sweep.* and a figure for each)."
)
EXAMPLES = """
arturo sweep digits-mlp --optimizers adamw adaarturo --lr 1e-4:1e-1
arturo sweep digits-mlp digits-cnn --optimizers adamw adaarturo --lr 3e-4:3e-2 --points 5 --seeds 3 --epochs 10 --jobs 2
arturo sweep fmnist-cnn --optimizers sgd --lr 1e-3:1 --subset 10000 --epochs 4 --set sgd.momentum=0.9
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    tasks: tuple[str, ...] = option(REQUIRED, "one or more of `arturo list`", metavar="TASK", positional=True)
    optimizers: tuple[str, ...] = option(("adamw", "adaarturo"), "what to sweep", metavar="NAME")
    lr: str = option("1e-4:1e-1", "range of learning rates, both ends included", metavar="LOW:HIGH")
    points: int | None = option(None, "how many learning rates (default: two per decade)", metavar="N", lowest=2, highest=1000)
    seeds: str = option("1", "a count N for the seeds 0 to N-1, or the seeds themselves", metavar="N|A,B,C")
    out: Path = option(Path("runs"), "folder for runs and results", metavar="DIR")
    pool: PoolSize = group(PoolSize, "")
    planning: Planning = group(Planning, "")
    share: Share = group(Share, "the tasks")
    set: tuple[str, ...] = option(
        (), "other arguments of an optimizer, e.g. adamw.weight_decay=0.1", metavar="OPTIMIZER.NAME=VALUE"
    )
    machine: Machine = group(Machine, "the machine", leave_out=("parallel",))
    data: DataSource = group(DataSource, "data")


def run(options: Options, argv: Sequence[str]) -> int:
    console = Console()
    rates, seeds = parse_range(options.lr, options.points), parse_seeds(options.seeds)
    once("lr", rates)
    others = parse_overrides(options.set, options.optimizers)
    configs = [
        config
        for task in options.tasks
        for seed in seeds  # outside the rates, so that an interrupted sweep has whole curves
        for rate in rates
        for config in plan(
            [task],
            options.optimizers,
            [seed],
            overrides={name: {**others.get(name, {}), "lr": rate} for name in options.optimizers},
            **flat(options.share),
            **flat(options.machine),
        )
    ]
    runs = RunSet(configs, options.out, options.pool)
    costs = prepare([runs], options.planning, options.data, console)
    if costs is None:
        return 0
    code = train_many(runs, costs, options.data, argv, console)
    if code > 1:  # interrupted: there is more to come
        return code
    records, problems = read_all(configs, options.out)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    if not records:
        raise RunError(f"{options.out}: all runs failed")
    result = document(sections(records), shown(argv))
    result.show(console)
    for path in result.write(options.out):
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)
    return code
