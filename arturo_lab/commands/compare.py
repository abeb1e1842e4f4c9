"""``arturo compare``: several optimizers on the same seeds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.commands.arguments import (
    add_against,
    add_command,
    add_data,
    add_jobs,
    add_machine,
    add_scale,
    add_set,
    add_target,
    machine,
    target,
)
from arturo_lab.commands.many import read_all, shown, train_many
from arturo_lab.errors import RunError
from arturo_lab.optimizers.catalog import PAPERS
from arturo_lab.report.report import Report
from arturo_lab.report.sections import sections
from arturo_lab.runs.plan import parse_overrides, parse_seeds, plan


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "compare",
        "several optimizers on the same seeds: a table, figures, a page, the numbers as JSON",
        """
        arturo compare digits-mlp
        arturo compare digits-mlp digits-cnn --seeds 5 --epochs 10 --jobs 2
        arturo compare digits-mlp --optimizers sgd arturo --seeds 0,5,8 --set sgd.lr=0.05 arturo.kl_bound=0.1
        arturo compare fmnist-cnn --optimizers adamw arturo --epochs 12 --subset 20000 --out runs/first-look
        arturo compare fmnist-cnn cifar10-cnn --seeds 10 --ray auto
        """,
    )
    sub.description = (
        "Train several optimizers on the same seeds: same start, same batches, same dropout masks. Runs are the folders of "
        "`arturo train`, OUT/TASK/OPTIMIZER-seedS-HASH: one that is over is used again, one that was interrupted goes on. "
        "Ends with a table for each task and writes OUT/summary.json, OUT/report.html, OUT/figures/ and OUT/tables/."
    )
    sub.add_argument("tasks", nargs="+", metavar="TASK", help="one or more of `arturo list`")
    sub.add_argument("--optimizers", nargs="+", metavar="NAME", default=list(PAPERS), help=f"default: {' '.join(PAPERS)}")
    sub.add_argument("--seeds", default="3", metavar="N|A,B,C", help="0 to N-1, or the seeds themselves (default: 3)")
    add_jobs(sub)
    add_target(sub)
    add_against(sub)
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where everything goes (default: runs)")

    scale = sub.add_argument_group("the tasks")
    add_scale(scale)
    add_set(scale, "OPTIMIZER.NAME=VALUE", "arguments of an optimizer, e.g. sgd.nesterov=true adamw.betas=0.9,0.99")
    add_machine(sub.add_argument_group("the machine"))
    add_data(sub.add_argument_group("data"))
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    aim = target(arguments)
    configs = plan(
        arguments.tasks,
        arguments.optimizers,
        parse_seeds(arguments.seeds),
        arguments.epochs,
        batch_size=arguments.batch_size,
        subset=arguments.subset,
        overrides=parse_overrides(arguments.set, arguments.optimizers),
        **machine(arguments),
    )
    code = train_many(configs, arguments.out, arguments, console)
    if code > 1:  # interrupted: there is more to come
        return code
    records, problems = read_all(configs, arguments.out)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    if not records:
        raise RunError(f"{arguments.out}: not one run could be made")
    result = Report(sections(records), problems, shown(arguments.argv), aim, arguments.against)
    result.show(console)
    console.print()
    result.write(arguments.out).say(console)
    return code
