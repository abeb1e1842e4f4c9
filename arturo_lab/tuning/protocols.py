"""How a search is done: the paper's way, and a fair one. What one search is, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from arturo_lab.errors import ConfigError
from arturo_lab.fields import flat, without_unset
from arturo_lab.optimizers.settings import Settings
from arturo_lab.registry import Registry
from arturo_lab.runs.config import FORMAT, RunConfig
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.provenance import code
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tuning.spaces import Space, space

CHEAP = ("digits",)  # data sets on which a study takes minutes


@dataclass(frozen=True)
class Protocol:
    """The rules of a search. Each number is a default that the command can change."""

    about: str
    trials: int  # configurations tried
    folds: int  # of cross-validation
    seeds: int  # for each configuration and fold
    sampler: str  # which of Optuna's proposes: gp, tpe
    quasi_random: float  # share of the trials that come from a Sobol sequence, before anything is learnt from results
    prune: bool  # whether hopeless configurations are given up before their last fold
    studies: int  # independent ones, on cheap tasks; elsewhere 1


PROTOCOLS: Registry[Protocol] = Registry(
    "protocol",
    {
        # "We apply k-fold cross-validation with k = 8 [...] we test 50 hyperparameter configurations and evaluate each on 3
        # different seeds. We use a Bayesian optimization": a sweep of Weights & Biases, whose model is a Gaussian process.
        "paper": Protocol("as published", 50, 8, 3, "gp", quasi_random=0.0, prune=False, studies=1),
        # A Sobol sequence covers the space whatever the optimizer, so no optimizer profits from a lucky start.
        "fair": Protocol("equal chances", 30, 5, 1, "tpe", quasi_random=1 / 3, prune=True, studies=3),
    },
)


@dataclass(frozen=True)
class Search:
    """One study: everything that its numbers depend on, except how many trials it is given.

    Independent studies of one search differ in ``study``, and by it in the seeds of training and of the sampler. The folds
    are the same.

    Example:
        >>> search = Search("digits-mlp", "sgd", "fair", folds=2, seeds=2, share=Share(epochs=3, batch_size=32), study=1)
        >>> [(config.share.fold, config.seed) for config in search.configs({"lr": 0.1}, fold=2)]
        [('2/2', 2), ('2/2', 3)]
    """

    task: str
    optimizer: str
    protocol: str
    folds: int
    seeds: int
    share: Share
    study: int = 0
    machine: Machine = field(default_factory=Machine)
    ranges: tuple[str, ...] = ()  # a space as ``--space`` has it, instead of the protocol's

    def __post_init__(self) -> None:
        _ = PROTOCOLS[self.protocol], TASKS[self.task], self.space
        for key, lowest in (("folds", 2), ("seeds", 1)):
            if getattr(self, key) < lowest:
                raise ConfigError(f"{key}: must be an integer >= {lowest}, got {getattr(self, key)}")
        middle = self.space.point((0.5,) * len(self.space.dimensions))
        self.configs(self.space.settings(middle), fold=self.folds)  # raises what is wrong with the others

    @property
    def space(self) -> Space:
        return space(self.protocol, self.optimizer, self.ranges)

    @property
    def name(self) -> str:
        """Of the study in Optuna's storage."""
        return f"{self.task} {self.optimizer} {self.protocol} {self.study}"

    def configs(self, settings: Settings, fold: int) -> list[RunConfig]:
        """The trainings that judge a configuration on one fold: one for each seed."""
        seeds = range(self.study * self.seeds, (self.study + 1) * self.seeds)
        return [self.config(settings, seed, f"{fold}/{self.folds}") for seed in seeds]

    def config(self, settings: Settings, seed: int, fold: str | None) -> RunConfig:
        """One training; without a fold on all training images, tested on the test images."""
        return RunConfig.for_task(
            self.task,
            self.optimizer,
            seed,
            overrides=settings,
            **{**flat(self.share), "fold": fold},
            **flat(self.machine),
        )

    def identity(self) -> dict[str, Any]:
        """What must be the same for a study to be resumed, its space included. None and False are as good as not named."""
        ends = {d.name: [d.low, d.high, "log" if d.log else "linear"] for d in self.space.dimensions}
        return {"format": FORMAT, **without_unset({**flat(self), "ranges": None}), "space": ends, "code": self.code}

    @property
    def code(self) -> dict[str, Any]:
        """What its trials are made with: a study is not resumed with another optimizer under the same name."""
        middle = self.space.point((0.5,) * len(self.space.dimensions))
        return code(self.config(self.space.settings(middle), seed=0, fold=None))

    def quasi_random(self, trials: int) -> int:
        """How many of so many trials come from the Sobol sequence."""
        return math.ceil(PROTOCOLS[self.protocol].quasi_random * trials)
