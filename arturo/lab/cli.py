"""The command ``arturo``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arturo.lab import data, report, report_command, show
from arturo.lab.compare import Run, compare, plan, progress_bar
from arturo.lab.config import RunConfig
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.registry import ConfigError
from arturo.lab.tasks import TASKS
from arturo.lab.train import EpochMetrics, train


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, 2: the user's mistake, said in a line, 130: interrupted."""
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (ConfigError, FileNotFoundError) as error:
        print(f"arturo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("arturo: interrupted", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="arturo",
        description="Train and compare optimizers on small real tasks.",
        epilog="examples:\n"
        "  arturo list\n"
        "  arturo train digits-mlp --optimizer arturo\n"
        "  arturo compare digits-mlp digits-cnn --optimizers adamw arturo --seeds 5\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, help_text: str, examples: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=help_text,
            description=help_text[0].upper() + help_text[1:] + ".",
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    sub = command(
        "compare",
        "several optimizers on the same seeds: a table, a figure, the numbers as JSON",
        "  arturo compare digits-mlp\n"
        "  arturo compare digits-mlp digits-cnn --seeds 5 --epochs 10\n"
        "  arturo compare fmnist-cnn --optimizers sgd arturo --seeds 1 --out runs/first-look\n",
    )
    sub.add_argument("tasks", nargs="+", metavar="TASK", help="one or more of `arturo list`")
    sub.add_argument("--optimizers", nargs="+", metavar="NAME", default=list(OPTIMIZERS), help="default: all of `arturo list`")
    sub.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N-1 (default: 3)")
    add_common(sub, "figure.png, summary.json and metrics.jsonl go to DIR/TASK")
    sub.set_defaults(run=run_compare)

    sub = command(
        "train",
        "one training, epoch by epoch",
        "  arturo train digits-mlp\n  arturo train digits-cnn --optimizer adamw --seed 3 --epochs 5\n",
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    sub.add_argument("--optimizer", metavar="NAME", default="arturo", help="one of `arturo list` (default: arturo)")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    add_common(sub, "metrics.jsonl goes to DIR/TASK/OPTIMIZER-seedS")
    sub.set_defaults(run=run_train)

    report_command.add(commands)
    show.add(commands)

    sub = command("list", "the tasks and the optimizers", "  arturo list\n")
    sub.set_defaults(run=run_list)
    return result


def add_common(sub: argparse.ArgumentParser, written: str) -> None:
    sub.add_argument("--epochs", type=int, metavar="E", help="default: the task's own; the schedule is stretched to fit")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help=f"{written} (default: runs)")
    sub.add_argument("--data-dir", type=Path, metavar="DIR", help="where the data sets are (default: $ARTURO_DATA)")


def run_compare(arguments: argparse.Namespace) -> None:
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


def run_train(arguments: argparse.Namespace) -> None:
    console = Console()
    config = RunConfig.for_task(arguments.task, arguments.optimizer, arguments.seed, arguments.epochs)
    loaded = data.load(TASKS[config.task].data, arguments.data_dir)
    console.print(f"{config.task}, {OPTIMIZERS[config.optimizer].label}, seed {config.seed}, {config.epochs} epochs")
    console.print("[bold] epoch  train loss  test loss  test accuracy  seconds  KL/bound       eta")

    def on_epoch(m: EpochMetrics) -> None:
        trust_region = "" if m.kl_over_bound is None else f"  {m.kl_over_bound:8.4f}  {m.eta:8.3g}"
        row = f"{m.epoch:6d}  {m.train_loss:10.4f}  {m.test_loss:9.4f}  {m.test_accuracy:13.2%}  {m.seconds:7.2f}"
        console.print(row + trust_region, highlight=False)

    epochs = train(config, loaded, on_epoch)
    path = arguments.out / config.task / f"{config.optimizer}-seed{config.seed}" / "metrics.jsonl"
    report.write_metrics([Run(config, epochs)], path)
    console.print(f"metrics: {path}", soft_wrap=True)


def run_list(arguments: argparse.Namespace) -> None:
    tasks = Table("task", "what it is", "epochs", "batch size", title="Tasks", title_justify="left")
    for name, task in TASKS.items():
        tasks.add_row(name, task.title, str(task.epochs), str(task.batch_size))
    optimizers = Table("optimizer", "label", "settings", title="Optimizers", title_justify="left")
    for name, entry in OPTIMIZERS.items():
        optimizers.add_row(name, entry.label, entry.settings)
    Console().print(tasks, optimizers, sep="\n\n")
