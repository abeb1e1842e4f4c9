"""What a run will cost in time and disk space: read from runs of its kind, else measured on a few batches."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch

from arturo_lab.data.examples import Examples
from arturo_lab.data.loading import Source
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import RecordError, read_run
from arturo_lab.runs.run import open_run
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.train import cpu_threads, evaluate, train

BATCHES = 4  # to train on when measuring; the first is a warm-up
ROW_BYTES = 600  # of metrics.jsonl, per epoch
MEASURING_SECONDS = 60.0  # after so long, further optimizers of a task are assumed to cost what the measured ones do

Kind = tuple[str, str, Share]  # task, optimizer, share: within one command such runs differ in nothing but the seed


def kind_of(config: RunConfig) -> Kind:
    return config.task, config.optimizer, config.share


@dataclass(frozen=True)
class Cost:
    """What a run takes."""

    epoch_seconds: float  # its test included
    test_seconds: float  # of the test
    checkpoint_bytes: float
    epoch_bytes: float  # of metrics and steps

    def run_seconds(self, config: RunConfig) -> float:
        return config.epochs * self.epoch_seconds

    def run_bytes(self, config: RunConfig) -> float:
        return self.checkpoint_bytes + config.epochs * self.epoch_bytes

    def longer(self, factor: float) -> Cost:
        """The same with epochs of ``factor`` times as many steps."""
        return replace(self, epoch_seconds=factor * self.epoch_seconds, epoch_bytes=factor * self.epoch_bytes)

    @classmethod
    def mean(cls, costs: Sequence[Cost]) -> Cost:
        return cls(*(statistics.fmean(values) for values in zip(*map(astuple, costs), strict=True)))


def recorded(config: RunConfig, out: Path) -> Cost | None:
    """From the run's folder, if it holds an epoch."""
    folder = out / config.folder
    try:
        rows = read_run(folder).rows
    except (RecordError, OSError):
        return None
    if not rows:
        return None
    seconds = [statistics.fmean(row.get(key) or 0.0 for row in rows) for key in ("seconds", "seconds_test")]
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    written = sizes.get("metrics.jsonl", 0) + sizes.get("steps.jsonl", 0)
    return Cost(sum(seconds), seconds[1], sizes.get("checkpoint.pt", 0), written / len(rows))


def measured(config: RunConfig, data: Examples, threads: int | None = None) -> Cost:
    """Train on a few batches, in a folder that is removed afterwards. The network is not compiled for it.

    Args:
        threads: of the process that will train, unless the config says how many it wants.
    """
    short = config.changed(compile=False, parallel=None)
    ends: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="arturo-cost-") as scratch,
        cpu_threads(config.machine.threads or TASKS[config.task].threads or threads),
        open_run(Path(scratch), short) as folder,
    ):
        try:
            train(
                short,
                data,
                on_step=lambda metrics: ends.append(time.perf_counter()),
                run=folder,
                stop=lambda: len(ends) >= BATCHES,
            )
        except KeyboardInterrupt:
            if len(ends) < BATCHES:  # the user's
                raise
        sizes = {path.name: path.stat().st_size for path in folder.path.iterdir()}
        test = seconds_of_test(short, data)
    step = (ends[-1] - ends[0]) / max(len(ends) - 1, 1)
    rows = config.steps_per_epoch * sizes["steps.jsonl"] / len(ends) + ROW_BYTES
    return Cost(config.steps_per_epoch * step + test, test, sizes["checkpoint.pt"], rows)


def seconds_of_test(config: RunConfig, data: Examples) -> float:
    """What the test of an epoch takes, from one batch of it."""
    task, device = TASKS[config.task], torch.device(config.machine.device)
    data = data.subset(config.share.subset).fold(config.share.held_out)
    model = task.model().to(device)
    batch = min(config.batch_size, len(data.test_targets))
    inputs, targets = data.test_inputs[:batch].to(device), data.test_targets[:batch].to(device)
    began = time.perf_counter()
    evaluate(model, inputs, targets, task)
    return (time.perf_counter() - began) * len(data.test_targets) / batch


def costs_of(
    configs: Sequence[RunConfig],
    out: Path,
    data: Mapping[Source, Examples],
    threads: int | None = None,
    on_measuring: Callable[[RunConfig], None] = lambda config: None,
) -> dict[Kind, Cost]:
    """What each kind of run costs.

    Args:
        configs: the runs.
        out: where their folders are; what they recorded is believed.
        data: by its source; without a data set nothing is measured on it.
        threads: see :func:`measured`.
        on_measuring: called before each measurement.
    """
    result: dict[Kind, Cost] = {}
    for config in configs:
        if kind_of(config) not in result and (cost := recorded(config, out)) is not None:
            result[kind_of(config)] = cost
    began = time.monotonic()
    for config in first_of_each_task_first({kind_of(config): config for config in configs}):
        known = [cost for (task, _, share), cost in result.items() if (task, share) == (config.task, config.share)]
        if kind_of(config) in result or TASKS[config.task].data not in data:
            continue
        if known and time.monotonic() - began > MEASURING_SECONDS:
            result[kind_of(config)] = Cost.mean(known)
            continue
        on_measuring(config)
        try:
            result[kind_of(config)] = measured(config, data[TASKS[config.task].data], threads)
        except Exception:  # the run itself will fail the same way, and report it
            continue
    return result


def first_of_each_task_first(configs: Mapping[Kind, RunConfig]) -> list[RunConfig]:
    """
    Example:
        >>> def config(task, optimizer):
        ...     return RunConfig.for_task(task, optimizer)
        >>> kinds = [("digits-mlp", "sgd"), ("digits-mlp", "adam"), ("digits-cnn", "sgd")]
        >>> configs = [config(*kind) for kind in kinds]
        >>> [kind_of(c)[:2] for c in first_of_each_task_first({kind_of(c): c for c in configs})]
        [('digits-mlp', 'sgd'), ('digits-cnn', 'sgd'), ('digits-mlp', 'adam')]
    """
    first = {config.task: config for config in reversed(list(configs.values()))}
    return [*reversed(first.values()), *(config for config in configs.values() if config not in first.values())]
