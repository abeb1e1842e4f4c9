"""``arturo train``: one training, epoch by epoch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from arturo_lab.commands.fetch import provide
from arturo_lab.commands.options import DataSource, LogTo
from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.errors import ConfigError, LabError, RunError
from arturo_lab.fields import REQUIRED, flat, group, option
from arturo_lab.optimizers import settings
from arturo_lab.optimizers.config_file import ConfigFile, read_config_file
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.provenance import differences, made_with
from arturo_lab.runs.run import RunFolder, made_otherwise, open_run
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training import loggers, parallel
from arturo_lab.training.display import TrainingDisplay
from arturo_lab.training.epoch import EpochMetrics, StepMetrics
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.loggers import Logger, Logging
from arturo_lab.training.parallel import Processes
from arturo_lab.training.train import available, train

DESCRIPTION = "Train one network. Metrics, checkpoint and result go to OUT/TASK/OPTIMIZER-seedS-HASH."
EXAMPLES = """
arturo train digits-mlp
arturo train digits-cnn --optimizer adamw --seed 3 --epochs 5 --set lr=0.003 weight_decay=0.1
arturo train cifar10-cnn --epochs 8 --subset 10000 --download
arturo train fmnist-resnet18 --optimizer sgd --checkpoint-seconds 600 --log tensorboard
arturo train fmnist-resnet18 --optimizer sgd --resume
arturo train digits-cnn --config runs/tune/digits-cnn-arturo.json
torchrun --nproc-per-node 2 -m arturo_lab train cifar10-resnet34 --parallel fsdp2
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    task: str = option(REQUIRED, "one of `arturo list`", metavar="TASK", positional=True)
    optimizer: str | None = option(None, "one of `arturo list` (default: arturo)", metavar="NAME")
    config: Path | None = option(None, "result file of `arturo tune`; options on the command line override it", metavar="FILE")
    seed: int = option(0, "seed of the initial weights, the batch order and the dropout masks", metavar="S", lowest=0)
    resume: bool = option(False, "resume an interrupted run from its last checkpoint")
    reuse: bool = option(False, "use a run even if its code, data or threads have changed")
    out: Path = option(Path("runs"), "folder for run folders", metavar="DIR")
    share: Share = group(Share, "the task")
    set: tuple[str, ...] = option(
        (), "arguments of the optimizer, e.g. lr=0.1 nesterov=true betas=0.9,0.99 kl_bound=none", metavar="NAME=VALUE"
    )
    machine: Machine = group(Machine, "the machine")
    data: DataSource = group(DataSource, "data and records")
    checkpoint_seconds: float | None = option(
        None, "also save a checkpoint every T seconds (default: after epochs only)", metavar="T"
    )
    logging: LogTo = group(LogTo, "")


def run(options: Options, argv: Sequence[str]) -> int:
    stored = read_config_file(options.config) if options.config else ConfigFile(optimizer=options.optimizer or "arturo")
    if options.optimizer not in (None, stored.optimizer):
        raise ConfigError(
            f"optimizer: {options.config} is for {stored.optimizer}, got {options.optimizer}; drop one of the two"
        )
    lengths = {key: value for key, value in flat(options.share).items() if value is not None}
    config = RunConfig.for_task(
        options.task,
        stored.optimizer,
        options.seed,
        overrides={**stored.settings, **settings.parse(options.set)},
        **{**stored.lengths(options.task), **lengths},
        **flat(options.machine),
    )
    if options.checkpoint_seconds is not None and not options.checkpoint_seconds > 0:
        raise ConfigError(f"checkpoint-seconds: must be a number > 0, got {options.checkpoint_seconds}")
    loggers.check(options.logging.log)
    parallel.check(config.machine.parallel)
    with parallel.joined(config.machine.parallel, torch.device(config.machine.device)) as processes:
        if not processes.first:
            return follow(config, options, processes)
        announced: list[bool] = []

        def tell(go: bool) -> None:
            announced.append(processes.share(go))

        try:
            return lead(config, options, argv, processes, tell)
        except LabError:
            if not announced:
                tell(False)
            raise


def follow(config: RunConfig, options: Options, processes: Processes) -> int:
    """A process other than the first: train along without output."""
    if processes.share(None):
        with interruptible() as stop:
            try:
                train(config, loading.load(TASKS[config.task].data, options.data.data_dir), stop=stop, processes=processes)
            except KeyboardInterrupt:
                return stop.exit_code
    return 0


def lead(config: RunConfig, options: Options, argv: Sequence[str], processes: Processes, tell: Callable[[bool], None]) -> int:
    """The first process, mostly the only one; it tells the others once whether there is anything to do."""
    console = Console()
    available(config.machine.device)
    loaded = provide(TASKS[config.task].data, options.data, console)

    with interruptible() as stop, open_run(options.out, config, options.checkpoint_seconds) as folder:
        threads = config.machine.threads or TASKS[config.task].threads or torch.get_num_threads()
        now = made_with(config, loaded.digest, threads)
        if (folder.result is not None or folder.started) and (changed := differences(folder.made_with, now)):
            if not options.reuse:
                raise RunError(made_otherwise(folder.path, changed))
            if folder.result is None:
                folder.accept(now)
        if folder.result is not None:
            tell(False)
            done = f"already {folder.result['status']}, nothing to do; remove {folder.path} to train it again"
            console.print(done, soft_wrap=True, highlight=False, markup=False)
            say_result(folder, console)
            return 0
        if folder.started and not options.resume:
            raise RunError(
                f"{folder.path}: holds an interrupted run, {folder.epochs_done} of {config.epochs} epochs; add --resume to "
                "resume it, or remove the folder to start again"
            )
        if options.resume and not folder.started:
            say_nothing_to_resume(folder, console)
        try:
            tell(True)
            status = watched(config, loaded, folder, Logging(options.logging.log, options.out), stop, console, processes)
        except KeyboardInterrupt:
            program = ["arturo"] if processes.world == 1 else ["torchrun", "...", "-m", "arturo_lab"]
            command = shlex.join([*program, *argv, *([] if options.resume else ["--resume"])])
            print(f"arturo: interrupted; to resume: {command}", file=sys.stderr)
            return stop.exit_code
        if status == "diverged":
            console.print("the loss is no longer finite: diverged", style="bold")
        say_result(folder, console)
    return 0


def watched(
    config: RunConfig,
    loaded: Examples,
    folder: RunFolder,
    log: Logging,
    stop: Any,
    console: Console,
    processes: Processes,
) -> str:
    """Train, with the display and the loggers looking on. The result's status."""
    done = folder.epochs_done if folder.started else 0
    if done:
        console.print(f"resuming after epoch {done}")
    with TrainingDisplay(config, console, done) as display, log.of(folder) as logged:
        watching: list[TrainingDisplay | Logger] = [display, *logged]

        def on_step(metrics: StepMetrics) -> None:
            for watcher in watching:
                watcher.on_step(metrics)

        def on_epoch(metrics: EpochMetrics) -> None:
            for watcher in watching:
                watcher.on_epoch(metrics)

        train(config, loaded, on_epoch, on_step, run=folder, stop=stop, processes=processes)
    assert folder.result is not None
    return str(folder.result["status"])


def say_nothing_to_resume(folder: RunFolder, console: Console) -> None:
    """Perhaps an option was forgotten: name the interrupted runs of this optimizer and seed that have other ones."""
    console.print(
        f"nothing to resume in {folder.path}; starting from the beginning", soft_wrap=True, highlight=False, markup=False
    )
    name, _, _ = folder.path.name.rpartition("-")
    for other in sorted(folder.path.parent.glob(f"{name}-*")):
        if other != folder.path and (other / "checkpoint.pt").exists() and not (other / "result.json").exists():
            console.print(
                f"an interrupted run with other options: {other}", soft_wrap=True, highlight=False, markup=False, style="bold"
            )


def say_result(folder: RunFolder, console: Console) -> None:
    assert folder.result is not None
    metric = TASKS[folder.config.task].metric
    value = folder.result.get(metric.key)
    data = "validation" if folder.config.share.fold else "test"
    console.print(f"{data} {metric.name} {metric.text(value)}: {folder.path}", soft_wrap=True, highlight=False, markup=False)
