"""How much of the paper's protocol is run: all of it, or a declared reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arturo_lab.fields import flat
from arturo_lab.optimizers.catalog import PAPERS
from arturo_lab.paper import published
from arturo_lab.registry import Registry
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import plan
from arturo_lab.runs.share import Share


@dataclass(frozen=True)
class Scale:
    """Args:
    about: what it is for.
    tasks: those whose accuracy and curves are made, and how much of each.
    seeds: of each.
    timing: the same for the tasks whose time is taken, in separate trainings.
    rounds: how often; rounds take the place of seeds, so that the optimizers take turns.
    optimizers: by default.
    threads: of the CPU; None is the task's or torch's choice.
    """

    about: str
    tasks: Mapping[str, Share]
    seeds: Sequence[int]
    timing: Mapping[str, Share]
    rounds: int
    optimizers: tuple[str, ...] = PAPERS
    threads: int | None = None

    def configs(
        self,
        tasks: Sequence[str],
        optimizers: Sequence[str],
        timing: bool = False,
        seeds: Sequence[int] | None = None,
        **options: Any,
    ) -> list[RunConfig]:
        """The trainings of these tasks. A task that the scale does not name is trained in full.

        ``options`` of :meth:`RunConfig.for_task` override the scale's unless they are None.
        """
        shares = self.timing if timing else self.tasks
        chosen = {key: value for key, value in options.items() if value is not None}
        result = []
        for task in tasks:
            own = {"threads": self.threads, **flat(shares.get(task, Share()))}
            result += plan([task], optimizers, seeds or (range(self.rounds) if timing else self.seeds), **{**own, **chosen})
        return result


# Of 255 images each, and one more held out: testing on all test images would take longer than what is timed.
TEN_BATCHES = Share(epochs=3, subset=11 * 255, fold="1/11")
FIVE_BATCHES = Share(epochs=2, subset=6 * 255, fold="1/6")

SCALES: Registry[Scale] = Registry(
    "scale",
    {
        "full": Scale(
            "the paper's protocol: all images, all epochs, ten seeds; add --plan to see how long that takes on your machine",
            tasks=dict.fromkeys((*published.TASKS, "fmnist-small-cnn"), Share()),
            seeds=range(published.SEEDS),
            timing=dict.fromkeys(published.TASKS, Share(epochs=4)),
            rounds=3,
        ),
        "cpu": Scale(
            "a reduction for two CPU cores: a part of the images, few epochs, three seeds",
            tasks={
                "fmnist-cnn": Share(epochs=8, subset=10_000),
                "cifar10-cnn": Share(epochs=4, subset=10_000),
                "cifar100-cnn": Share(epochs=4, subset=10_000),
                "fmnist-resnet18": Share(epochs=4, subset=5_500),
                "fmnist-small-cnn": Share(epochs=8, subset=10_000),
            },
            seeds=range(3),
            timing={
                "fmnist-cnn": TEN_BATCHES,
                "fmnist-resnet18": FIVE_BATCHES,
                "cifar10-cnn": TEN_BATCHES,
                "cifar10-resnet34": FIVE_BATCHES,
                "cifar100-cnn": TEN_BATCHES,
                "cifar100-resnet34": FIVE_BATCHES,
            },
            rounds=3,
            threads=1,
        ),
    },
)
