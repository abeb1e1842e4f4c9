"""``arturo calibrate``: how good the predicted probabilities are, method by method."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from arturo_lab.commands.arguments import add_command, add_data, add_jobs, add_machine, add_scale, machine
from arturo_lab.commands.fetch import provide
from arturo_lab.commands.many import shown, train_many
from arturo_lab.data.loading import ImageData
from arturo_lab.data.sources import DATA
from arturo_lab.errors import ConfigError, DataNotFound, RunError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.pool.board import found
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import once
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.uncertainty.calibrate import Outcome, configs_of, evaluate
from arturo_lab.uncertainty.document import document
from arturo_lab.uncertainty.images import ELSEWHERE, Images, Work
from arturo_lab.uncertainty.methods import DEFAULT, METHODS, dropout_layers

HELD_OUT = 1000  # images, or a sixth of the training set if that is less
TEMPERATURES = (1e-3, 1e-2, 1e-1, 1.0)
PRIOR_PRECISIONS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "calibrate",
        "how good predicted probabilities are: the posterior against IVON, Laplace, dropout, an ensemble",
        """
        arturo calibrate digits-cnn --epochs 10 --methods point arturo ensemble
        arturo calibrate fmnist-cnn --epochs 4 --subset 10000 --test-images 2000 --jobs 2
        arturo calibrate cifar10-cnn --epochs 20 --download --out runs/calibration
        """,
    )
    sub.description = (
        "Train what the methods need and score their probabilities on the test set: accuracy, negative log-likelihood, "
        "expected calibration error, Brier score, and how well their entropy tells images of another data set from the task's "
        "own. Held-out training images choose temperature and prior where a method has them. Trainings are the folders of "
        "`arturo train`; what is there is used, what was interrupted goes on. Writes OUT/calibrate-TASK.md, .json, .png, .pdf."
    )
    sub.add_argument("task", metavar="TASK", help="one of `arturo list`")
    about = "; ".join(f"{name}: {method.about}" for name, method in METHODS.items())
    sub.add_argument("--methods", nargs="+", metavar="NAME", help=f"{about} (default: {' '.join(DEFAULT)})")
    sub.add_argument(
        "--ours", default="arturo-default", metavar="NAME", help="what trains arTuRO's networks (default: arturo-default)"
    )
    sub.add_argument("--theirs", default="adamw", metavar="NAME", help="what trains the others' (default: adamw)")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="of the trainings and the draws (default: 0)")
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where everything goes (default: runs)")
    add_jobs(sub)
    work = sub.add_argument_group("the predictions")
    work.add_argument("--samples", type=int, default=20, metavar="N", help="draws per prediction (default: 20)")
    work.add_argument("--tuning-samples", type=int, default=8, metavar="N", help="draws per candidate (default: 8)")
    work.add_argument(
        "--held-out", type=int, metavar="N", help="training images kept back for tuning (default: 1000 or a sixth)"
    )
    work.add_argument(
        "--curvature-images", type=int, default=500, metavar="N", help="for Gauss-Newton diagonals (default: 500)"
    )
    work.add_argument("--test-images", type=int, metavar="N", help="the first N test images (default: all)")
    add_scale(sub.add_argument_group("the trainings"))
    add_machine(sub.add_argument_group("the machine"))
    add_data(sub.add_argument_group("data"))
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    task = TASKS[arguments.task]
    methods, left_out = usable(arguments.methods, arguments.task, arguments.ours)
    for name in ("samples", "tuning_samples", "curvature_images"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{name.replace('_', '-')}: must be an integer >= 1, got {getattr(arguments, name)}")
    total = DATA[task.data].train_images
    held_out = min(HELD_OUT, total // 6) if arguments.held_out is None else arguments.held_out
    subset = total - held_out if arguments.subset is None else arguments.subset

    def config(optimizer: str, seed: int) -> RunConfig:
        return RunConfig.for_task(
            arguments.task,
            optimizer,
            seed,
            arguments.epochs,
            batch_size=arguments.batch_size,
            subset=subset,
            **machine(arguments),
        )

    optimizers = {"ours": arguments.ours, "theirs": arguments.theirs}
    configs = {name: configs_of(name, arguments.seed, optimizers, config) for name in methods}
    every = list({c.name: c for mine in configs.values() for c in mine}.values())
    data = provide(task.data, arguments, console)
    other, notes = elsewhere(task.data, arguments, console)
    images = Images.split(data, subset, held_out, arguments.test_images, other)
    work = Work(
        arguments.samples,
        arguments.tuning_samples,
        min(arguments.curvature_images, subset),
        TEMPERATURES,
        PRIOR_PRECISIONS,
        arguments.seed,
    )
    code = train_many(every, arguments.out, arguments, console)
    if code:
        return code
    bad = [c.name for c in every if found(c, arguments.out).state != "finished"]
    if bad:
        raise RunError(f"{arguments.out}: {', '.join(bad)} diverged; there is nothing to predict with")

    sizes = {"held_out": held_out, "test": len(images.test_labels), "elsewhere": other.name if other else None}
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("methods", total=len(methods))
        for name in methods:
            progress.update(bar, description=METHODS[name].label)
            outcome, _ = evaluate(name, configs[name], images, work, sizes, arguments.out)
            outcomes.append(outcome)
            progress.advance(bar)
    first = every[0]
    protocol = {
        "training": f"{first.epochs} epochs, batches of {first.batch_size}, {subset:,} images, seed {arguments.seed} and up",
        "held out": f"{held_out:,} other training images",
        "test": f"{sizes['test']:,} images",
        "elsewhere": "none" if images.elsewhere is None else f"{len(images.elsewhere):,} images of {sizes['elsewhere']}",
        "draws per prediction": work.samples,
        "images for Gauss-Newton diagonals": work.curvature_images,
        "ours trained by": arguments.ours,
        "others trained by": f"{arguments.theirs}; IVON by itself, with its authors' values",
        "candidates": f"temperatures {words(TEMPERATURES)}; prior precisions {words(PRIOR_PRECISIONS)}",
    }
    tested = len(images.test_labels)
    spread = max((o.scores.accuracy * (1 - o.scores.accuracy) / tested) ** 0.5 for o in outcomes)
    notes.append(f"One seed. The standard error of an accuracy on {tested:,} images is up to {100 * spread:.1f} points.")
    if any(outcome.chosen.get("at_edge") for outcome in outcomes):
        notes.append("(edge): temperature or prior precision is the least or the largest that was tried.")
    result = document(arguments.task, shown(arguments.argv), protocol, outcomes, [*notes, *left_out])
    result.show(console)
    for path in result.write(arguments.out):
        console.print(str(path), soft_wrap=True, highlight=False)
    return 0


def usable(chosen: list[str] | None, task: str, ours: str) -> tuple[list[str], list[str]]:
    """The methods, checked before anything is trained; one that was not asked for and does not suit is left out with a note."""
    once("methods", chosen or [])
    methods = [name for name in chosen or DEFAULT if METHODS[name]]  # an unknown name raises
    if not hasattr(OPTIMIZERS[ours].load(), "posterior"):
        raise ConfigError(f"ours: must be one of arTuRO's entries of `arturo list`, got {ours}")
    with torch.device("meta"):
        without = not dropout_layers(TASKS[task].model())
    if "dropout" not in methods or not without:
        return methods, []
    if chosen:
        raise ConfigError(f"methods: dropout needs a network with dropout; that of {task} has none")
    return [name for name in methods if name != "dropout"], ["No MC dropout: this network has no dropout."]


def words(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def elsewhere(name: str, arguments: argparse.Namespace, console: Console) -> tuple[ImageData | None, list[str]]:
    """Images the networks know nothing of; without them a note."""
    other = ELSEWHERE[name]
    try:
        return provide(other, arguments, console), []
    except DataNotFound:
        return None, [f"No AUROC: {other}, the images from elsewhere, was not found (`arturo fetch {other}`)."]
