"""The optimizers. A variant or an ablation is one more entry of ``OPTIMIZERS``; docs/extending.md says how to bring others."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from arturo import PAPER, AdaArturo, Arturo
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers import curvature, muon, tuned
from arturo_lab.optimizers.tuned import ABLATIONS, ABSOLUTE, Values
from arturo_lab.references import look_up
from arturo_lab.registry import Registry
from arturo_lab.tasks.schedules import Schedule, constant

Constructor = Callable[..., Optimizer]


@dataclass(frozen=True)
class OptimizerEntry:
    """How to build an optimizer, what to call it, and what it needs of the training loop beyond ``step()``.

    Args:
        label: its name in tables and figures.
        about: what it is, in a few words.
        load: gives the constructor. A function, so that a package is imported only when somebody wants it.
        values: arguments on tasks without tuned ones.
        tuned: arguments by task.
        from_images: arguments that follow from the number of training examples.
        milestone_factor: factor on lr at each of the paper's milestones.
        schedule: instead of the task's.
        warmup: share of the steps over which lr rises, unless a run says another.
        instrument: told the network and its loss once, before the first step.
        around_gradient: entered before the forward pass, left after the backward pass.
        create_graph: whether ``backward`` must leave a graph to differentiate again.
        mode: told True before training and False before testing.
        tests_other_weights: whether ``mode`` changes the weights, so that batch norms must see them before a test.
        forgets: attributes its ``state_dict()`` leaves out though a resumed run needs them.
        method: number of the method, of our own ones: whoever changes what a step computes, beyond rounding, raises it, and
            results that are kept for long (`arturo league`) are made again. None: its source says which it is.
        draws: whether it takes random numbers from torch's global generator, so that dropout's masks are not those of the
            other optimizers with the same seed.
    """

    label: str
    about: str
    load: Callable[[], Constructor]
    values: Values = field(default_factory=dict)
    tuned: Mapping[str, Values] = field(default_factory=dict)
    from_images: Callable[[int], Values] | None = None
    milestone_factor: float = 0.1
    schedule: Schedule | None = None
    warmup: float = 0.0
    instrument: Callable[[nn.Module, Any], None] = lambda network, loss: None
    around_gradient: Callable[[Any], AbstractContextManager[Any]] = lambda optimizer: nullcontext()
    create_graph: bool = False
    mode: Callable[[Any, bool], None] = lambda optimizer, training: None
    tests_other_weights: bool = False
    forgets: tuple[str, ...] = ()
    draws: bool = False
    method: int | None = None

    @property
    def exact_diagonal(self) -> bool:
        """Whether BackPACK follows the network."""
        return self.instrument is curvature.extend

    def for_task(self, task: str, images: int) -> Values:
        """Its arguments on a task with so many training examples."""
        counted = {} if self.from_images is None else self.from_images(images)
        return {**self.values, **counted, **self.tuned.get(task, {})}


def peer(module: str, name: str) -> Callable[[], Constructor]:
    """The constructor ``name`` of a package that the extra ``[peers]`` installs."""

    def load() -> Constructor:
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError as error:
            raise ConfigError(f"optimizer: {name} comes from another package: pip install 'arturo[peers]' ({error})") from error

    return load


@contextmanager
def _expected_cycle() -> Iterator[None]:
    """torch warns that gradients with a graph keep themselves alive; the loop's zero_grad() breaks the cycle."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
        yield


def _switch(optimizer: Any, training: bool) -> None:
    optimizer.train() if training else optimizer.eval()


def exact(name: str) -> dict[str, Any]:
    """What an entry needs for BackPACK's diagonal of the Hessian ("hessian") or of the Gauss-Newton matrix ("ggn")."""
    return {"instrument": curvature.extend, "around_gradient": lambda optimizer: curvature.diagonal_in_backward(name)}


TWICE: dict[str, Any] = {"around_gradient": lambda optimizer: _expected_cycle(), "create_graph": True}  # to differentiate again
NEED_GRAPH = ("AdaHessian", "SophiaH")  # of pytorch-optimizer: they differentiate the gradient
ROOT = math.sqrt(0.006)  # the paper multiplies epsilon by 0.006 at a milestone; the bound goes with lr squared


ADAPTIVE, EXACT = 4, 1  # `method` of AdaArturo and of Arturo


TUNED = {**tuned.ARTURO, **ABLATIONS["arturo"]}


def ablation(label: str, about: str, values: Values, tuned: Mapping[str, Values], **needs: Any) -> OptimizerEntry:
    """arTuRO with something in it replaced."""
    return OptimizerEntry(label, about, lambda: Arturo, {**ABSOLUTE, **values}, tuned, milestone_factor=ROOT, **needs)


def brought(name: str) -> OptimizerEntry | None:
    """An optimizer from outside: ``file.py:Class``, ``package.module:Class``, an entry point, or ``po:Name``.

    A class is taken with its own defaults. What needs more of the training loop than ``step()`` is an
    :class:`OptimizerEntry` of that file or package.
    """
    place, _, attribute = name.partition(":")
    item = look_up("optimizer", f"pytorch_optimizer:{attribute}" if place == "po" else name)
    if item is None or isinstance(item, OptimizerEntry):
        return item
    if not callable(item) or (isinstance(item, type) and not issubclass(item, Optimizer)):
        what = item.__name__ if isinstance(item, type) else type(item).__name__
        raise ConfigError(f"optimizer: {name} must be a torch.optim.Optimizer or an OptimizerEntry, got {what}")
    first = next(iter(inspect.signature(item).parameters), "nothing")
    if first != "params":
        raise ConfigError(f"optimizer: the first argument of {name} must be params, got {first}: it is no optimizer by itself")
    both = hasattr(item, "train") and hasattr(item, "eval")  # schedule-free ones switch between two sets of weights
    twice = TWICE if attribute in NEED_GRAPH and place == "po" else {}
    switched: dict[str, Any] = {"mode": _switch, "tests_other_weights": True, "schedule": constant} if both else {}
    return OptimizerEntry(attribute or name, f"from {place}", lambda: item, **switched, **twice)


OPTIMIZERS: Registry[OptimizerEntry] = Registry(
    "optimizer",
    {
        "sgd": OptimizerEntry(
            "SGD", "lr 0.1, momentum 0.9; tuned in the paper", lambda: SGD, {"lr": 0.1, "momentum": 0.9}, tuned.SGD
        ),
        "adam": OptimizerEntry(
            "Adam", "lr 1e-3; tuned in the paper", lambda: Adam, {"lr": 1e-3}, {**tuned.ADAM, **ABLATIONS["adam"]}
        ),
        "adamw": OptimizerEntry(
            "AdamW",
            "lr 1e-3, weight decay 1e-2; tuned in the paper",
            lambda: AdamW,
            {"lr": 1e-3, "weight_decay": 1e-2},
            tuned.ADAMW,
        ),
        "adamw-warmup": OptimizerEntry(
            "AdamW (warm-up)",
            "AdamW whose lr rises over the first tenth of the steps",
            lambda: AdamW,
            {"lr": 1e-3, "weight_decay": 1e-2},
            tuned.ADAMW,
            warmup=0.1,
        ),
        "adaarturo": OptimizerEntry(
            "AdaArturo",
            "ours, noise and geometry learned; lr 1e-3, nothing tuned anywhere",
            lambda: AdaArturo,
            {"lr": 1e-3},
            method=ADAPTIVE,
        ),
        "adaarturo-diagonal": OptimizerEntry(
            "AdaArturo (diagonal)",
            "the same without matrix products; nothing tuned anywhere",
            lambda: AdaArturo,
            {"lr": 1e-3, "covariance": "diagonal"},
            method=ADAPTIVE,
        ),
        "arturo": OptimizerEntry("arTuRO", "ours, exact; tuned in the paper", lambda: Arturo, {}, TUNED, milestone_factor=ROOT),
        "arturo-paper": OptimizerEntry(
            "arTuRO (paper)", "as published; tuned in the paper", lambda: Arturo, PAPER, TUNED, milestone_factor=ROOT
        ),
        "arturo-default": OptimizerEntry(
            "arTuRO (default)", "ours, exact, nothing tuned anywhere", lambda: Arturo, {}, milestone_factor=ROOT, method=EXACT
        ),
        # The paper's ablations, and what it leaves out of them.
        "arturo-bisection": ablation(
            "arTuRO (published rule)", "ours with the published rule for the multiplier alone", {"dual": "bisection"}, TUNED
        ),
        "arturo-fixed-eta": ablation(
            "arTuRO (fixed η)",
            "a constant multiplier instead of the trust region; `arturo eta` proposes one",
            {"eta": 1.0},
            ABLATIONS["arturo-fixed-eta"],
        ),
        "arturo-adam": ablation(
            "arTuRO (Adam's moments)", "surrogate from Adam's moments", {"surrogate": "adam"}, ABLATIONS["arturo-adam"]
        ),
        "arturo-hessian": ablation(
            "arTuRO (Hessian)",
            "surrogate from the exact Hessian diagonal; package BackPACK",
            {"surrogate": "hessian"},
            ABLATIONS["arturo-hessian"],
            **exact("hessian"),
        ),
        "arturo-ggn": ablation(
            "arTuRO (GGN)",
            "surrogate from the exact Gauss-Newton diagonal; package BackPACK",
            {"surrogate": "ggn"},
            ABLATIONS["arturo-hessian"],
            **exact("ggn"),
        ),
        "arturo-hutchinson": ablation(
            "arTuRO (Hutchinson)",
            "surrogate from Hutchinson's estimate of the Hessian diagonal",
            {"surrogate": "hutchinson"},
            ABLATIONS["arturo-hutchinson"],
            **TWICE,
        ),
        # Peers, with the values their authors recommend to start from. Nobody tuned them on these tasks.
        "ivon": OptimizerEntry(
            "IVON",
            "lr 0.1; package ivon-opt",
            peer("ivon", "IVON"),
            {"lr": 0.1},
            from_images=lambda images: {"ess": images},
            around_gradient=lambda optimizer: optimizer.sampled_params(train=True),
            forgets=("current_step",),
            draws=True,
        ),
        "adahessian": OptimizerEntry(
            "AdaHessian",
            "lr 0.15, eps 1e-4, spatial averaging; package pytorch-optimizer",
            curvature.with_spatial_average(peer("pytorch_optimizer", "AdaHessian")),
            {"lr": 0.15, "eps": 1e-4},
            ABLATIONS["adahessian"],
            draws=True,
            **TWICE,
        ),
        "adahessian-hessian": OptimizerEntry(
            "AdaHessian (Hessian)",
            "lr 0.0015, eps 1e-4, the exact diagonal; also package BackPACK",
            curvature.with_exact_diagonal(peer("pytorch_optimizer", "AdaHessian")),
            {"lr": 0.0015, "eps": 1e-4},
            **exact("hessian"),
        ),
        "schedulefree-adamw": OptimizerEntry(
            "schedule-free AdamW",
            "lr 0.0025, no schedule; package schedulefree",
            peer("schedulefree", "AdamWScheduleFree"),
            {"lr": 0.0025},
            schedule=constant,
            mode=_switch,
            tests_other_weights=True,
        ),
        "schedulefree-adamw-warmup": OptimizerEntry(
            "schedule-free AdamW (warm-up)",
            "the same; lr rises over the first tenth of the steps, as its authors recommend",
            peer("schedulefree", "AdamWScheduleFree"),
            {"lr": 0.0025},
            schedule=constant,
            warmup=0.1,
            mode=_switch,
            tests_other_weights=True,
        ),
        "soap": OptimizerEntry("SOAP", "lr 3e-3; package pytorch-optimizer", peer("pytorch_optimizer", "SOAP"), {"lr": 3e-3}),
        "soap-warmup": OptimizerEntry(
            "SOAP (warm-up)",
            "SOAP whose lr rises over the first tenth of the steps",
            peer("pytorch_optimizer", "SOAP"),
            {"lr": 3e-3},
            warmup=0.1,
        ),
        "muon": OptimizerEntry(
            "Muon",
            "lr 0.02, AdamW with lr 3e-4 for all but hidden matrices; package pytorch-optimizer",
            muon.with_adamw(peer("pytorch_optimizer", "Muon")),
            instrument=muon.mark_outer,
        ),
        "lion": OptimizerEntry("Lion", "lr 1e-4; package pytorch-optimizer", peer("pytorch_optimizer", "Lion"), {"lr": 1e-4}),
        "lamb": OptimizerEntry("LAMB", "lr 1e-3; package pytorch-optimizer", peer("pytorch_optimizer", "Lamb"), {"lr": 1e-3}),
        "adabelief": OptimizerEntry(
            "AdaBelief", "lr 1e-3; package pytorch-optimizer", peer("pytorch_optimizer", "AdaBelief"), {"lr": 1e-3}
        ),
        "prodigy": OptimizerEntry(
            "Prodigy", "lr 1, a factor; package pytorch-optimizer", peer("pytorch_optimizer", "Prodigy"), {"lr": 1.0}
        ),
    },
    beyond=brought,
)

PAPERS = ("sgd", "adam", "adamw", "arturo", "arturo-paper")  # what the paper compares, and both of ours
