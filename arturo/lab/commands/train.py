"""``arturo train``: one training, epoch by epoch."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo.lab import data, loggers, settings
from arturo.lab.commands.arguments import add_command, add_data, add_machine, add_scale, machine
from arturo.lab.commands.fetch import provide
from arturo.lab.config import RunConfig
from arturo.lab.display import TrainingDisplay
from arturo.lab.epoch import EpochMetrics, StepMetrics
from arturo.lab.errors import ConfigError, RunError
from arturo.lab.interrupt import interruptible
from arturo.lab.loggers import LOGGERS, Logger
from arturo.lab.run import RunFolder, open_run
from arturo.lab.tasks import TASKS
from arturo.lab.train import available, train


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "train",
        "one training, epoch by epoch; metrics, checkpoint and result go to OUT/TASK/OPTIMIZER-seedS-HASH",
        """
        arturo train digits-mlp
        arturo train digits-cnn --optimizer adamw --seed 3 --epochs 5 --set lr=0.003 weight_decay=0.1
        arturo train cifar10-cnn --epochs 8 --subset 10000 --download
        arturo train fmnist-resnet18 --optimizer sgd --checkpoint-seconds 600 --log tensorboard
        arturo train fmnist-resnet18 --optimizer sgd --resume
        """,
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    sub.add_argument("--optimizer", metavar="NAME", default="arturo", help="one of `arturo list` (default: arturo)")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    sub.add_argument("--resume", action="store_true", help="go on with a run that was interrupted, from its last checkpoint")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go (default: runs)")

    scale = sub.add_argument_group("the task")
    add_scale(scale)
    scale.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="arguments of the optimizer, e.g. lr=0.1 nesterov=true betas=0.9,0.99 kl_bound=none",
    )

    add_machine(sub.add_argument_group("the machine"))

    files = sub.add_argument_group("data and records")
    add_data(files)
    files.add_argument(
        "--checkpoint-seconds", type=float, metavar="T", help="also save every T seconds (default: after epochs only)"
    )
    files.add_argument("--log", nargs="+", default=[], metavar="NAME", help=f"also log to {', '.join(LOGGERS)}")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    config = RunConfig.for_task(
        arguments.task,
        arguments.optimizer,
        arguments.seed,
        arguments.epochs,
        batch_size=arguments.batch_size,
        subset=arguments.subset,
        overrides=settings.parse(arguments.set),
        **machine(arguments),
    )
    if arguments.checkpoint_seconds is not None and not arguments.checkpoint_seconds > 0:
        raise ConfigError(f"checkpoint-seconds: must be a number > 0, got {arguments.checkpoint_seconds}")
    loggers.check(arguments.log)
    available(config.device)
    loaded = provide(TASKS[config.task].data, arguments, console)

    with interruptible() as stop, open_run(arguments.out, config, arguments.checkpoint_seconds) as folder:
        if folder.result is not None:
            console.print(f"already {folder.result['status']}, nothing to do; remove {folder.path} to train it again")
            say_result(folder, console)
            return 0
        if folder.started and not arguments.resume:
            raise RunError(
                f"{folder.path}: holds an interrupted run, {folder.epochs_done} of {config.epochs} epochs; --resume goes on "
                "with it, or remove the folder to start again"
            )
        try:
            status = watched(config, loaded, folder, arguments.log, stop, console)
        except KeyboardInterrupt:
            command = shlex.join(["arturo", *arguments.argv, *([] if arguments.resume else ["--resume"])])
            print(f"arturo: interrupted; to go on: {command}", file=sys.stderr)
            return stop.exit_code
        if status == "diverged":
            console.print("the loss is not finite any more: diverged", style="bold")
        say_result(folder, console)
    return 0


def watched(config: RunConfig, loaded: data.ImageData, folder: RunFolder, log: list[str], stop: Any, console: Console) -> str:
    """Train, with the display and the loggers looking on. The result's status."""
    done = folder.epochs_done if folder.started else 0
    if done:
        console.print(f"goes on after epoch {done}")
    status = "interrupted"
    with ExitStack() as stack:
        display = stack.enter_context(TrainingDisplay(config, console, done))
        watching: list[TrainingDisplay | Logger] = [display]
        for name in dict.fromkeys(log):
            logger = LOGGERS[name](folder)
            stack.callback(lambda logger=logger: logger.close(status))  # type: ignore[misc]
            watching.append(logger)

        def on_step(metrics: StepMetrics) -> None:
            for watcher in watching:
                watcher.on_step(metrics)

        def on_epoch(metrics: EpochMetrics) -> None:
            for watcher in watching:
                watcher.on_epoch(metrics)

        train(config, loaded, on_epoch, on_step, run=folder, stop=stop)
        assert folder.result is not None
        status = str(folder.result["status"])
    return status


def say_result(folder: RunFolder, console: Console) -> None:
    assert folder.result is not None
    console.print(f"test accuracy {folder.result['test_accuracy']:.2%}: {folder.path}", soft_wrap=True, highlight=False)
