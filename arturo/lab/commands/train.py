"""``arturo train``: one training, epoch by epoch."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from arturo.lab import data, loggers, parallel, settings
from arturo.lab.commands.arguments import add_command, add_data
from arturo.lab.commands.fetch import fetch
from arturo.lab.config import RunConfig
from arturo.lab.datasets import DATA
from arturo.lab.display import TrainingDisplay
from arturo.lab.epoch import EpochMetrics, StepMetrics
from arturo.lab.errors import ConfigError, LabError, RunError
from arturo.lab.interrupt import interruptible
from arturo.lab.loggers import LOGGERS, Logger
from arturo.lab.parallel import Processes
from arturo.lab.run import RunFolder, load_run, open_run
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
        torchrun --nproc-per-node 2 -m arturo.lab train cifar10-resnet34 --parallel fsdp2
        """,
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    sub.add_argument("--optimizer", metavar="NAME", default="arturo", help="one of `arturo list` (default: arturo)")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    sub.add_argument("--resume", action="store_true", help="go on with a run that was interrupted, from its last checkpoint")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go (default: runs)")

    scale = sub.add_argument_group("the task")
    scale.add_argument("--epochs", type=int, metavar="E", help="default: the task's own; the schedule is stretched to fit")
    scale.add_argument("--subset", type=int, metavar="N", help="the first N training images of a fixed shuffled order")
    scale.add_argument("--batch-size", type=int, metavar="B", help="default: the task's own")
    scale.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="arguments of the optimizer, e.g. lr=0.1 nesterov=true betas=0.9,0.99 kl_bound=none",
    )

    machine = sub.add_argument_group("the machine")
    machine.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    machine.add_argument("--threads", type=int, metavar="N", help="of the CPU (default: the task's, else torch's choice)")
    machine.add_argument("--amp", metavar="TYPE", help="bf16: forward pass and loss in bfloat16 where torch holds it safe")
    machine.add_argument("--compile", action="store_true", help="the network through torch.compile")

    machine.add_argument(
        "--parallel",
        metavar="HOW",
        help="under torchrun: ddp (all weights in every process) or fsdp2 (weights and state shared out)",
    )

    files = sub.add_argument_group("data and records")
    add_data(files)
    files.add_argument("--download", action="store_true", help="fetch the data if it is not found")
    files.add_argument(
        "--checkpoint-seconds", type=float, metavar="T", help="also save every T seconds (default: after epochs only)"
    )
    files.add_argument("--log", nargs="+", default=[], metavar="NAME", help=f"also log to {', '.join(LOGGERS)}")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    config = RunConfig.for_task(
        arguments.task,
        arguments.optimizer,
        arguments.seed,
        arguments.epochs,
        batch_size=arguments.batch_size,
        subset=arguments.subset,
        overrides=settings.parse(arguments.set),
        device=arguments.device,
        threads=arguments.threads,
        amp=arguments.amp,
        compile=arguments.compile,
        parallel=arguments.parallel,
    )
    if arguments.checkpoint_seconds is not None and not arguments.checkpoint_seconds > 0:
        raise ConfigError(f"checkpoint-seconds: must be a number > 0, got {arguments.checkpoint_seconds}")
    loggers.check(arguments.log)
    parallel.check(config.parallel)
    with parallel.joined(config.parallel, torch.device(config.device)) as processes:
        if not processes.first:
            return follow(config, arguments, processes)
        told: list[bool] = []

        def tell(go: bool) -> None:
            told.append(processes.share(go))

        try:
            return lead(config, arguments, processes, tell)
        except LabError:
            if not told:
                tell(False)
            raise


def follow(config: RunConfig, arguments: argparse.Namespace, processes: Processes) -> int:
    """Another process than the first: train along, in silence."""
    if processes.share(None):
        with interruptible() as stop:
            try:
                train(config, data.load(TASKS[config.task].data, arguments.data_dir), stop=stop, processes=processes)
            except KeyboardInterrupt:
                return stop.exit_code
    return 0


def lead(config: RunConfig, arguments: argparse.Namespace, processes: Processes, tell: Callable[[bool], None]) -> int:
    """The first process, mostly the only one; it tells the others once whether there is anything to do."""
    console = Console()
    name = TASKS[config.task].data
    if arguments.download and data.find(name, arguments.data_dir)[0] is None:
        fetch(name, arguments.data_dir, arguments.mirror, console)
    available(config.device)
    loaded = data.load(name, arguments.data_dir)

    with interruptible() as stop, open_run(arguments.out, config, arguments.checkpoint_seconds) as folder:
        if folder.result is not None:
            tell(False)
            console.print(f"already {folder.result['status']}, nothing to do; remove {folder.path} to train it again")
            say_result(folder, console)
            return 0
        if folder.started and not arguments.resume:
            epochs = len(load_run(folder.path).metrics)
            raise RunError(
                f"{folder.path}: holds an interrupted run, {epochs} of {config.epochs} epochs; --resume goes on with it, "
                "or remove the folder to start again"
            )
        try:
            tell(True)
            status = watched(config, loaded, folder, arguments.log, stop, console, processes)
        except KeyboardInterrupt:
            program = ["arturo"] if processes.world == 1 else ["torchrun", "...", "-m", "arturo.lab"]
            command = shlex.join([*program, *arguments.argv, *([] if arguments.resume else ["--resume"])])
            print(f"arturo: interrupted; to go on: {command}", file=sys.stderr)
            return stop.exit_code
        if status == "diverged":
            console.print("the loss is not finite any more: diverged", style="bold")
        say_result(folder, console)
    return 0


def watched(
    config: RunConfig,
    loaded: data.ImageData,
    folder: RunFolder,
    log: list[str],
    stop: Any,
    console: Console,
    processes: Processes,
) -> str:
    """Train, with the display and the loggers looking on. The result's status."""
    done = len(load_run(folder.path).metrics) if folder.started else 0
    steps = math.ceil((config.subset or DATA[TASKS[config.task].data].train_images) / config.batch_size)
    if done:
        console.print(f"goes on after epoch {done}")
    status = "interrupted"
    with ExitStack() as stack:
        display = stack.enter_context(TrainingDisplay(config, steps, console, done))
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

        train(config, loaded, on_epoch, on_step, run=folder, stop=stop, processes=processes)
        assert folder.result is not None
        status = str(folder.result["status"])
    return status


def say_result(folder: RunFolder, console: Console) -> None:
    assert folder.result is not None
    console.print(f"test accuracy {folder.result['test_accuracy']:.2%}: {folder.path}", soft_wrap=True, highlight=False)
