"""One training, from the seed to the last test. Reads top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LambdaLR

from arturo import Arturo
from arturo_lab.data.examples import Examples
from arturo_lab.data.inputs import Inputs
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import as_arguments
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.provenance import made_with
from arturo_lab.runs.run import RunFolder
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.metrics import Metric
from arturo_lab.tasks.schedules import lr_factor
from arturo_lab.tasks.task import Task
from arturo_lab.training.batches import Batches
from arturo_lab.training.checkpoint import Training
from arturo_lab.training.epoch import Epoch, EpochMetrics, StepMetrics
from arturo_lab.training.parallel import Processes
from arturo_lab.training.prediction import prediction_error

EVALUATION_BATCH = 1000  # bounds memory; has no part in the result
NORM_BATCHES = 50  # that batch norms see before a test of other weights than the trained ones


def train(
    config: RunConfig,
    data: Examples,
    on_epoch: Callable[[EpochMetrics], None] = lambda metrics: None,
    on_step: Callable[[StepMetrics], None] = lambda metrics: None,
    *,
    run: RunFolder | None = None,
    stop: Callable[[], bool] = lambda: False,
    processes: Processes | None = None,
) -> tuple[EpochMetrics, ...]:
    """Train ``config.task``'s network on ``data``, all of it; call ``on_epoch`` and ``on_step`` after each of them.

    Runs that share a seed share the initial weights, the batch order, the augmentation and the dropout masks, whatever the
    optimizer: their difference is the optimizer's. (One that draws random numbers itself shifts the masks: ``draws`` of its
    entry.) The caller's random state and thread count are left as they were.

    A loss that is not finite ends the run: the epoch's row is the last one, and says so by a train loss of NaN.

    Args:
        config: what to train.
        data: what to train on; ``config.share`` says which part is held out.
        on_epoch: gets every epoch's metrics.
        on_step: gets every step's metrics.
        run: where to write metrics, checkpoints and the result, and to resume from if it holds a checkpoint.
        stop: asked after every step; True saves a checkpoint and raises KeyboardInterrupt.
        processes: those that share the work; all call this with the same config, and the first one alone has a ``run``.
    """
    processes = Processes() if processes is None else processes
    whole = data
    task, entry, device = TASKS[config.task], OPTIMIZERS[config.optimizer], available(config.machine.device)
    data = data.subset(config.share.subset).fold(config.share.held_out).to(device)
    examples = len(data)
    if task.epoch_steps is not None and not task.replacement and examples < config.batch_size:
        raise ConfigError(f"batch_size: {examples:,} examples make no batch of {config.batch_size}; lower --batch-size")
    steps = task.steps(examples, config.batch_size)  # of an epoch
    factor = lr_factor(config.lr_schedule, entry.milestone_factor, config.lr_warmup, steps * config.epochs)
    history: list[EpochMetrics] = []
    epoch: Epoch | None = None
    diverged = False

    with torch.random.fork_rng([device] if device.type == "cuda" else []), cpu_threads(config.machine.threads or task.threads):
        torch.manual_seed(config.seed)  # initial weights, then dropout
        batches = Batches(task, data, config.seed, config.batch_size)
        model = task.model().to(device)
        criterion = nn.CrossEntropyLoss() if task.loss is cross_entropy else task.loss  # BackPACK follows a module only
        if config.machine.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last = config.batch_size if task.epoch_steps else examples % config.batch_size or config.batch_size
        if last == 1 and has_norms(model):
            raise ConfigError(
                f"batch_size: {examples:,} examples in batches of {config.batch_size} leave one alone, of which batch norms "
                "can take no variance; choose another --batch-size or --subset"
            )
        entry.instrument(model, criterion)
        network = processes.spread(model)
        network = torch.compile(network) if config.machine.compile else network  # type: ignore[assignment]
        if processes.world > 1:
            torch.manual_seed(config.seed + processes.rank)  # separate dropout masks
        optimizer = entry.load()(model.parameters(), **as_arguments(config.settings))
        scheduler = LambdaLR(optimizer, factor)
        training = Training(model, optimizer, scheduler, batches.order, entry.forgets, processes)

        kept = processes.share(run is not None)

        def save(epoch: Epoch | None) -> None:
            captured = training.capture(epoch)  # all processes have a part in it
            if run is not None:
                run.save(captured)

        def with_what() -> dict[str, Any]:
            return made_with(config, whole.digest, torch.get_num_threads())

        if kept:
            history, captured = processes.share(None if run is None else run.begin(with_what()))
            epoch = None if captured is None else training.restore(captured)
            diverged = any(math.isnan(metrics.train_loss + metrics.test_loss) for metrics in history)

        def measure(on: Examples) -> dict[str, float]:
            entry.mode(optimizer, False)
            if entry.tests_other_weights:
                refresh_norms(model, task.inputs, data.train_inputs.split(config.batch_size)[:NORM_BATCHES])
            return evaluate(model, on.test_inputs.to(device), on.test_targets.to(device), task, processes)

        while len(history) < config.epochs and not diverged:
            if epoch is None:
                epoch = Epoch(len(history) + 1, batches.order.epoch())
            model.train()
            entry.mode(optimizer, True)

            for batch in epoch.batches(config.batch_size):
                with epoch.timed("step", device):
                    with epoch.timed("data", device):
                        inputs, targets = map(processes.part, batches.at(batch))
                    optimizer.zero_grad()
                    with entry.around_gradient(optimizer):
                        with epoch.timed("forward", device), precision(config.machine.amp, device):
                            loss = processes.loss(criterion, network(inputs), targets, len(batch))
                        with epoch.timed("backward", device):
                            loss.backward(create_graph=entry.create_graph)
                    (value,) = processes.total([loss.item() / processes.world], device)
                    diverged = not math.isfinite(value)
                lr = float(optimizer.param_groups[0]["lr"])
                unsharded = not diverged and processes.parallel != "fsdp2"
                error = prediction_error(optimizer) if isinstance(optimizer, Arturo) and unsharded else None
                if not diverged:
                    with epoch.timed("step", device), epoch.timed("optimizer", device):
                        optimizer.step()
                        scheduler.step()

                info = optimizer.last_step if isinstance(optimizer, Arturo) and not diverged else None
                epoch.add(value, len(batch), info, error)
                trust_region = {} if info is None else {k: v for k, v in info._asdict().items() if k != "active"}
                number = (epoch.number - 1) * steps + epoch.steps
                step = StepMetrics(number, epoch.number, value, lr, **trust_region, prediction_error=error)
                if run is not None:
                    run.write_step(step)
                on_step(step)
                if diverged:
                    break
                asked, due = processes.total([stop(), run is not None and run.checkpoint_is_due()], device)
                if kept and (asked or due):
                    save(epoch)
                if asked:
                    raise KeyboardInterrupt

            with epoch.timed("test", device):
                tested = measure(data)
            metrics = epoch.metrics(tested, seconds_before=history[-1].wall_seconds if history else 0.0)
            diverged = diverged or not math.isfinite(metrics.test_loss)
            history.append(metrics)
            epoch = None
            if run is not None:
                run.write_epoch(metrics)
            if kept:
                save(None)
            on_epoch(metrics)
            if any(processes.total([stop()], device)) and len(history) < config.epochs:
                raise KeyboardInterrupt

        test = None
        if config.share.validation is not None and kept and not diverged:
            test = measure(whole)  # the one look at the test set
            diverged = not math.isfinite(test["loss"])
        if run is not None:
            run.finish("diverged" if diverged else "finished", history, test)
    return tuple(history)


@torch.no_grad()
def evaluate(
    model: nn.Module, inputs: Tensor, targets: Tensor, task: Task, processes: Processes | None = None
) -> dict[str, float]:
    """The task's loss and metrics by name, of ``model`` in evaluation mode, in full precision."""
    processes = Processes() if processes is None else processes
    model.eval()
    measured = [metric for metric in task.metrics if metric.of is not None]
    sums = [0.0] * (1 + len(measured))
    for x, y in zip(inputs.split(EVALUATION_BATCH), targets.split(EVALUATION_BATCH), strict=True):
        x, y = task.inputs.for_testing(processes.part(x)), processes.part(y)
        if not len(y):
            continue
        output, y = model(x), x if task.reconstructs else y
        sums[0] += task.loss(output, y).item() * len(y)
        for i, metric in enumerate(measured, start=1):
            assert metric.of is not None
            sums[i] += metric.of(output, y).sum().item()
    loss, *values = (total / len(targets) for total in processes.total(sums, targets.device))
    return {"loss": loss, **{m.name: finished(m, value) for m, value in zip(measured, values, strict=True)}}


def finished(metric: Metric, mean: float) -> float:
    """The metric of a mean; NaN where it has none, e.g. the logarithm of a negative number."""
    try:
        return float(metric.finish(mean))
    except (ValueError, OverflowError):
        return math.nan


@torch.no_grad()
def refresh_norms(model: nn.Module, inputs: Inputs, batches: tuple[Tensor, ...]) -> None:
    """Let batch norms see what the weights under test make of some training inputs; without batch norms do nothing."""
    if has_norms(model):
        model.train()
        for batch in batches:
            model(inputs.for_testing(batch))


def has_norms(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def precision(amp: str | None, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 where torch considers it safe, or everything as it is."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if amp == "bf16" else nullcontext()


def available(name: str) -> torch.device:
    """The device, if this machine has it."""
    device = torch.device(name)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device: {name} is not available here; this machine has {', '.join(devices())}") from error
    return device


def devices() -> list[str]:
    """What this machine's torch can compute on."""
    accelerators = [f"cuda:{i}" for i in range(torch.cuda.device_count())] + ["mps"] * torch.backends.mps.is_available()
    return ["cpu", *accelerators]


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads inside the block; None leaves the choice to torch."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
