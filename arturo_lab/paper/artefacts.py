"""The paper's tables and figures. Another one is another entry of ``ARTEFACTS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arturo_lab.errors import ConfigError
from arturo_lab.paper import published
from arturo_lab.paper.ablation import ablation
from arturo_lab.paper.accuracy import accuracy_table
from arturo_lab.paper.content import Content
from arturo_lab.paper.curves import curves
from arturo_lab.paper.drawn import architectures, graphical_model, trust_region
from arturo_lab.paper.hyperparameters import hyperparameters
from arturo_lab.paper.scales import SCALES, Scale
from arturo_lab.paper.timing import timing_table
from arturo_lab.registry import Registry, unknown
from arturo_lab.report.metric import ACCURACY
from arturo_lab.report.plots import TRAIN_LOSS
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import once


@dataclass(frozen=True)
class Artefact:
    """Args:
    title: with its place in the paper.
    make: what it shows of the runs.
    tasks: that it is about; the scale may have fewer of them.
    optimizers: None is the scale's.
    timing: whether it needs separate trainings, one after the other on an otherwise idle machine. Those of the other
        artefacts are shared: each is trained once.
    drawn: whether it needs no training at all.
    """

    title: str
    make: Callable[..., Content]  # of the sections, and of what to compare with; if drawn, of nothing
    tasks: tuple[str, ...] = published.TASKS
    optimizers: tuple[str, ...] | None = None
    timing: bool = False
    drawn: bool = False

    @property
    def folder(self) -> str:
        """Where its runs are, below OUT."""
        return "timing" if self.timing else ""

    def configs(
        self,
        scale: Scale,
        tasks: Sequence[str] | None = None,
        optimizers: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        **options: Any,
    ) -> list[RunConfig]:
        """Its trainings at a scale. None is the scale's choice; ``options``: see :meth:`Scale.configs`."""
        if self.drawn:
            return []
        known = self.known(scale)
        chosen = known if tasks is None else list(tasks)
        for task in chosen:
            if task not in known:
                elsewhere = [name for name, other in SCALES.items() if task in self.known(other)]
                if elsewhere:
                    raise ConfigError(f"tasks: {task} is not part of this scale; it is of --scale {' or '.join(elsewhere)}")
                raise unknown("tasks", task, known)
        once("tasks", chosen)
        return scale.configs(chosen, optimizers or self.optimizers or scale.optimizers, self.timing, seeds, **options)

    def known(self, scale: Scale) -> list[str]:
        """The tasks that it is about and that the scale has."""
        return [task for task in self.tasks if task in (scale.timing if self.timing else scale.tasks)]


ARTEFACTS: Registry[Artefact] = Registry(
    "artefact",
    {
        "table1": Artefact("Final test accuracy (tab:accuracy)", accuracy_table),
        "curves": Artefact("Test accuracy over epochs (fig:results, fig:add_test_acc)", curves(ACCURACY)),
        "train-loss": Artefact("Train loss over epochs (fig:train_loss)", curves(TRAIN_LOSS)),
        "trust-region-ablation": Artefact(
            "The trust region and the surrogate (fig:ablation, left)",
            ablation,
            ("fmnist-cnn", "fmnist-small-cnn"),
            ("arturo", "arturo-bisection", "arturo-paper", "arturo-fixed-eta", "arturo-adam"),
        ),
        "hessian-ablation": Artefact(
            "The surrogate against the exact Hessian diagonal (fig:ablation, right)",
            ablation,
            ("fmnist-small-cnn",),
            ("adam", "adahessian", "adahessian-hessian", "arturo", "arturo-adam", "arturo-hutchinson", "arturo-hessian"),
        ),
        "timing": Artefact("Time per training epoch (tab:timing)", timing_table, timing=True),
        "figure1": Artefact("The trust region of a step (figure 1), on our landscapes", trust_region, (), drawn=True),
        "hyperparameters": Artefact(
            "Tuned hyperparameters, ours beside the paper's (tab:hp_sgd, tab:hp_adam, tab:hp_adamw, tab:hp_itropt)",
            hyperparameters,
            (),
            drawn=True,
        ),
        "architectures": Artefact("The networks (fig:cnn_arch)", architectures, (), drawn=True),
        "graphical-model": Artefact(
            "The state space model of the surrogate (fig:graphical_model)", graphical_model, (), drawn=True
        ),
    },
)
