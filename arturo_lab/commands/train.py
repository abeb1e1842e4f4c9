"""``arturo train``: one training, epoch by epoch."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from arturo_lab.commands.arguments import add_command, add_data, add_machine, add_scale, add_set, machine
from arturo_lab.commands.fetch import provide
from arturo_lab.data import loading
from arturo_lab.errors import ConfigError, LabError, RunError
from arturo_lab.optimizers import settings
from arturo_lab.optimizers.config_file import ConfigFile, read_config_file
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.run import RunFolder, open_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training import loggers, parallel
from arturo_lab.training.display import TrainingDisplay
from arturo_lab.training.epoch import EpochMetrics, StepMetrics
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.loggers import LOGGERS, Logger
from arturo_lab.training.parallel import Processes
from arturo_lab.training.train import available, train


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
        arturo train digits-cnn --config runs/tune/digits-cnn-arturo.json
        torchrun --nproc-per-node 2 -m arturo_lab train cifar10-resnet34 --parallel fsdp2
        """,
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    sub.add_argument("--optimizer", metavar="NAME", help="one of `arturo list` (default: arturo)")
    sub.add_argument("--config", type=Path, metavar="FILE", help="what `arturo tune` found; options given here go before it")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    sub.add_argument("--resume", action="store_true", help="go on with a run that was interrupted, from its last checkpoint")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go (default: runs)")

    scale = sub.add_argument_group("the task")
    add_scale(scale)
    add_set(scale, "NAME=VALUE", "arguments of the optimizer, e.g. lr=0.1 nesterov=true betas=0.9,0.99 kl_bound=none")

    where = sub.add_argument_group("the machine")
    add_machine(where)
    where.add_argument(
        "--parallel",
        metavar="HOW",
        help="under torchrun: ddp (all weights in every process) or fsdp2 (weights and state shared out)",
    )

    files = sub.add_argument_group("data and records")
    add_data(files)
    files.add_argument(
        "--checkpoint-seconds", type=float, metavar="T", help="also save every T seconds (default: after epochs only)"
    )
    files.add_argument("--log", nargs="+", default=[], metavar="NAME", help=f"also log to {', '.join(LOGGERS)}")
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    found = read_config_file(arguments.config) if arguments.config else ConfigFile(optimizer=arguments.optimizer or "arturo")
    if arguments.optimizer not in (None, found.optimizer):
        raise ConfigError(f"optimizer: {arguments.config} is of {found.optimizer}, got {arguments.optimizer}; leave one out")
    lengths = found.lengths(arguments.task)
    config = RunConfig.for_task(
        arguments.task,
        found.optimizer,
        arguments.seed,
        lengths["epochs"] if arguments.epochs is None else arguments.epochs,
        batch_size=lengths["batch_size"] if arguments.batch_size is None else arguments.batch_size,
        subset=lengths["subset"] if arguments.subset is None else arguments.subset,
        overrides={**found.settings, **settings.parse(arguments.set)},
        **machine(arguments),
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
                train(config, loading.load(TASKS[config.task].data, arguments.data_dir), stop=stop, processes=processes)
            except KeyboardInterrupt:
                return stop.exit_code
    return 0


def lead(config: RunConfig, arguments: argparse.Namespace, processes: Processes, tell: Callable[[bool], None]) -> int:
    """The first process, mostly the only one; it tells the others once whether there is anything to do."""
    console = Console()
    available(config.device)
    loaded = provide(TASKS[config.task].data, arguments, console)

    with interruptible() as stop, open_run(arguments.out, config, arguments.checkpoint_seconds) as folder:
        if folder.result is not None:
            tell(False)
            console.print(f"already {folder.result['status']}, nothing to do; remove {folder.path} to train it again")
            say_result(folder, console)
            return 0
        if folder.started and not arguments.resume:
            raise RunError(
                f"{folder.path}: holds an interrupted run, {folder.epochs_done} of {config.epochs} epochs; --resume goes on "
                "with it, or remove the folder to start again"
            )
        if arguments.resume and not folder.started:
            say_nothing_to_resume(folder, console)
        try:
            tell(True)
            status = watched(config, loaded, folder, arguments.log, stop, console, processes)
        except KeyboardInterrupt:
            program = ["arturo"] if processes.world == 1 else ["torchrun", "...", "-m", "arturo_lab"]
            command = shlex.join([*program, *arguments.argv, *([] if arguments.resume else ["--resume"])])
            print(f"arturo: interrupted; to go on: {command}", file=sys.stderr)
            return stop.exit_code
        if status == "diverged":
            console.print("the loss is not finite any more: diverged", style="bold")
        say_result(folder, console)
    return 0


def watched(
    config: RunConfig,
    loaded: loading.ImageData,
    folder: RunFolder,
    log: list[str],
    stop: Any,
    console: Console,
    processes: Processes,
) -> str:
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

        train(config, loaded, on_epoch, on_step, run=folder, stop=stop, processes=processes)
        assert folder.result is not None
        status = str(folder.result["status"])
    return status


def say_nothing_to_resume(folder: RunFolder, console: Console) -> None:
    """Perhaps an option was forgotten: name the interrupted runs of this optimizer and seed that have other ones."""
    console.print(f"nothing to go on from in {folder.path}: starts anew", soft_wrap=True, highlight=False)
    name, _, _ = folder.path.name.rpartition("-")
    for other in sorted(folder.path.parent.glob(f"{name}-*")):
        if other != folder.path and (other / "checkpoint.pt").exists() and not (other / "result.json").exists():
            console.print(f"an interrupted run with other options: {other}", soft_wrap=True, highlight=False, style="bold")


def say_result(folder: RunFolder, console: Console) -> None:
    assert folder.result is not None
    console.print(f"test accuracy {folder.result['test_accuracy']:.2%}: {folder.path}", soft_wrap=True, highlight=False)
