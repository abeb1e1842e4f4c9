"""``arturo compare``: several optimizers on the same seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo.lab import data, report
from arturo.lab.commands.arguments import add_command, add_data
from arturo.lab.compare import compare, plan, progress_bar
from arturo.lab.optimizers import PAPERS
from arturo.lab.tasks import TASKS


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "compare",
        "several optimizers on the same seeds: a table, a figure, the numbers as JSON",
        """
        arturo compare digits-mlp
        arturo compare digits-mlp digits-cnn --seeds 5 --epochs 10
        arturo compare fmnist-cnn --optimizers sgd arturo --seeds 1 --epochs 12 --out runs/first-look
        """,
    )
    sub.add_argument("tasks", nargs="+", metavar="TASK", help="one or more of `arturo list`")
    sub.add_argument("--optimizers", nargs="+", metavar="NAME", default=list(PAPERS), help=f"default: {' '.join(PAPERS)}")
    sub.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N-1 (default: 3)")
    sub.add_argument("--epochs", type=int, metavar="E", help="default: the task's own; the schedule is stretched to fit")
    sub.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="figure.png, summary.json and metrics.jsonl go to DIR/TASK (default: runs)",
    )
    add_data(sub)
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    console = Console()
    plans = {task: plan(task, arguments.optimizers, arguments.seeds, arguments.epochs) for task in arguments.tasks}
    comparisons = []
    with progress_bar() as progress:
        bars = {
            task: progress.add_task(task, total=sum(config.epochs for config in configs), running="", start=False)
            for task, configs in plans.items()
        }
        for task, configs in plans.items():
            loaded = data.load(TASKS[task].data, arguments.data_dir)
            progress.start_task(bars[task])
            comparisons.append(compare(configs, loaded, progress, bars[task]))
    for comparison in comparisons:
        picture = report.write(comparison, arguments.out / comparison.task)
        console.print()
        console.print(report.table(comparison))
        console.print(f"figure: {picture}", soft_wrap=True)
