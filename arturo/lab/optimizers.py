"""The optimizers, each with the values a user would start from. A variant or an ablation is one more line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from arturo import Arturo
from arturo.lab.registry import Registry
from arturo.lab.tasks import Task


@dataclass(frozen=True)
class OptimizerEntry:
    """How to build an optimizer, and what to call it in tables and figures."""

    label: str
    settings: str  # for `arturo list`
    build: Callable[[Iterable[nn.Parameter], Task], Optimizer]  # the task, for values that were tuned on one


OPTIMIZERS: Registry[OptimizerEntry] = Registry(
    "optimizer",
    {
        "sgd": OptimizerEntry("SGD", "lr 0.1, momentum 0.9", lambda params, task: SGD(params, lr=0.1, momentum=0.9)),
        "adam": OptimizerEntry("Adam", "lr 1e-3", lambda params, task: Adam(params, lr=1e-3)),
        "adamw": OptimizerEntry("AdamW", "lr 1e-3, weight decay 1e-2", lambda params, task: AdamW(params, lr=1e-3)),
        "arturo": OptimizerEntry("arTuRO", "untouched", lambda params, task: Arturo(params)),
    },
)
