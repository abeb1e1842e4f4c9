"""One epoch: what is summed up while it runs, and what is reported about it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from arturo import StepInfo


@dataclass(frozen=True)
class EpochMetrics:
    """What one epoch measured: a row of metrics.jsonl. Accuracies are fractions, losses what the task says."""

    epoch: int  # 1 is the first
    train_loss: float  # mean over the epoch's examples, each before the step that used it, dropout on
    test_loss: float
    test_accuracy: float | None  # None: the task has no such metric
    seconds: float  # of training, without the test and without writing files
    kl_over_bound: float | None = None  # arTuRO only: mean over the steps of the mean's KL / its bound
    eta: float | None = None  # arTuRO only: mean over the steps of the multiplier
    evaluations: float | None = None  # arTuRO only: mean over the steps of the evaluations of the constraint
    wall_seconds: float = 0.0  # `seconds` of this and all epochs before, over all processes that took part
    seconds_data: float = 0.0  # parts of `seconds`
    seconds_forward: float = 0.0
    seconds_backward: float = 0.0
    seconds_optimizer: float = 0.0
    seconds_test: float = 0.0  # of the test, not a part of `seconds`
    seconds_cpu: float = 0.0  # of all threads of the process during `seconds`; less where others had the cores
    images_per_second: float = 0.0  # in training
    prediction_error: float | None = None  # arTuRO only: mean over the steps, see arturo_lab.training.prediction
    others: dict[str, float] = field(default_factory=dict)  # the task's other metrics by name; in the row test_NAME each

    def value(self, name: str) -> float | None:
        """A metric of the task by its name."""
        known = {"loss": self.test_loss, "accuracy": self.test_accuracy}
        return known[name] if name in known else self.others.get(name)


@dataclass(frozen=True)
class StepMetrics:
    """What one step measured: a row of steps.jsonl."""

    step: int  # 1 is the first of the run
    epoch: int
    loss: float
    lr: float  # of the first group
    eta: float | None = None  # these four: arTuRO only
    kl: float | None = None
    bound: float | None = None
    evaluations: int | None = None
    skipped: int | None = None  # gradient entries that counted as missing
    prediction_error: float | None = None  # of the gradient, relative to its norm, before the step


@dataclass
class Epoch:
    """The running sums of an epoch. Plain values, so that a checkpoint in its middle can hold them."""

    number: int
    order: Tensor  # of the training images
    steps: int = 0  # done
    images: int = 0  # seen
    loss_sum: float = 0.0
    kl_over_bound_sum: float = 0.0
    eta_sum: float = 0.0
    evaluations: int = 0
    trust_region: bool = False  # whether any step had one
    prediction_error_sum: float = 0.0
    predictions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by what was done

    def batches(self, size: int) -> Iterator[Tensor]:
        """The batches that are left."""
        yield from self.order.split(size)[self.steps :]

    @contextmanager
    def timed(self, what: str, device: torch.device) -> Iterator[None]:
        """Add the time of the block. An accelerator works behind our back: wait for it."""
        start, worked = time.perf_counter(), time.process_time()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start
        if what == "step":
            self.seconds["cpu"] = self.seconds.get("cpu", 0.0) + time.process_time() - worked

    def add(self, loss: float, images: int, info: StepInfo | None, prediction_error: float | None = None) -> None:
        """Count one step."""
        self.steps += 1
        self.images += images
        self.loss_sum += loss * images
        if info is not None:
            self.trust_region = True
            self.kl_over_bound_sum += info.kl / info.bound if info.bound else 0.0  # lr = 0: nothing moves
            self.eta_sum += info.eta
            self.evaluations += info.evaluations
        if prediction_error is not None:
            self.prediction_error_sum += prediction_error
            self.predictions += 1

    def metrics(self, tested: dict[str, float], seconds_before: float) -> EpochMetrics:
        """What it comes to. ``tested`` are metrics by name; ``seconds_before`` were spent on the epochs before."""
        seconds = self.seconds.get("step", 0.0)
        steps = max(self.steps, 1)
        return EpochMetrics(
            epoch=self.number,
            train_loss=self.loss_sum / max(self.images, 1),
            test_loss=tested["loss"],
            test_accuracy=tested.get("accuracy"),
            seconds=seconds,
            kl_over_bound=self.kl_over_bound_sum / steps if self.trust_region else None,
            eta=self.eta_sum / steps if self.trust_region else None,
            evaluations=self.evaluations / steps if self.trust_region else None,
            wall_seconds=seconds_before + seconds,
            seconds_data=self.seconds.get("data", 0.0),
            seconds_forward=self.seconds.get("forward", 0.0),
            seconds_backward=self.seconds.get("backward", 0.0),
            seconds_optimizer=self.seconds.get("optimizer", 0.0),
            seconds_test=self.seconds.get("test", 0.0),
            seconds_cpu=self.seconds.get("cpu", 0.0),
            images_per_second=self.images / seconds if seconds else 0.0,
            prediction_error=self.prediction_error_sum / self.predictions if self.predictions else None,
            others={name: value for name, value in tested.items() if name not in ("loss", "accuracy")},
        )


def as_row(metrics: EpochMetrics | StepMetrics) -> dict[str, Any]:
    """As JSON has it: what is not finite is null, what does not apply is left out of a step.

    Example:
        >>> as_row(StepMetrics(step=1, epoch=1, loss=float("nan"), lr=0.1))
        {'step': 1, 'epoch': 1, 'loss': None, 'lr': 0.1}
    """
    row = dataclasses.asdict(metrics)
    if isinstance(metrics, StepMetrics):
        row = {key: value for key, value in row.items() if value is not None}
    else:
        row |= {f"test_{name}": value for name, value in row.pop("others").items()}
        if row["test_accuracy"] is None:
            del row["test_accuracy"]
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def from_row(row: dict[str, Any]) -> EpochMetrics:
    """The epoch that :func:`as_row` wrote; a loss that was not finite comes back as NaN."""
    known = {f.name for f in dataclasses.fields(EpochMetrics)}
    others = {key: value for key, value in row.items() if key.startswith("test_") and key not in known}
    own = {key: value for key, value in row.items() if key not in others}
    lost = {key: math.nan for key in ("train_loss", "test_loss") if row[key] is None}
    named = {key.removeprefix("test_"): math.nan if value is None else value for key, value in others.items()}
    return EpochMetrics(**{"test_accuracy": None, **own, **lost}, others=named)
