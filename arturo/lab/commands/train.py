"""``arturo train``: one training, epoch by epoch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo.lab import data, report
from arturo.lab.commands.arguments import add_command, add_data
from arturo.lab.compare import Run
from arturo.lab.config import RunConfig
from arturo.lab.epoch import EpochMetrics
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.tasks import TASKS
from arturo.lab.train import train


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "train",
        "one training, epoch by epoch",
        """
        arturo train digits-mlp
        arturo train digits-cnn --optimizer adamw --seed 3 --epochs 5
        """,
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    sub.add_argument("--optimizer", metavar="NAME", default="arturo", help="one of `arturo list` (default: arturo)")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    sub.add_argument("--epochs", type=int, metavar="E", help="default: the task's own; the schedule is stretched to fit")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    add_data(sub)
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
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
