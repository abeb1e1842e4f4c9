"""``arturo calibrate``: scores of the predicted probabilities, method by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from arturo_lab.commands.fetch import provide
from arturo_lab.commands.many import RunSet, prepare, shown, train_many
from arturo_lab.commands.options import DataSource, PoolSize
from arturo_lab.commands.planning import Planning
from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.errors import ConfigError, DataNotFound, RunError
from arturo_lab.fields import REQUIRED, flat, group, option
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.pool.cost import Cost, Kind, kind_of
from arturo_lab.pool.status import status_of
from arturo_lab.report.wording import seed_words
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.plan import once, parse_seeds
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.uncertainty.calibrate import APART, Outcome, configs_of, evaluate
from arturo_lab.uncertainty.document import CLOSE, chance_words, document
from arturo_lab.uncertainty.images import ELSEWHERE, Images, Work
from arturo_lab.uncertainty.methods import DEFAULT, METHODS, dropout_layers

HELD_OUT = 1000  # images, or a sixth of the training set if that is less
TEMPERATURES = (1e-3, 1e-2, 1e-1, 1.0)
PRIOR_PRECISIONS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)


DESCRIPTION = (
    "Train what the methods need and score their probabilities on the test set: accuracy, negative log-likelihood, "
    "expected calibration error, Brier score, and how well their entropy tells images of another data set from the task's "
    "own. Held-out training images choose temperature and prior where a method has them. Trainings are the folders of "
    "`arturo train`: finished ones are reused, interrupted ones resumed. Writes OUT/calibrate-TASK.md, .json, .png, .pdf."
)
EXAMPLES = """
arturo calibrate digits-cnn --epochs 10 --methods point arturo ensemble
arturo calibrate fmnist-cnn --epochs 4 --subset 10000 --test-images 2000 --jobs 2
arturo calibrate cifar10-cnn --epochs 20 --download --out runs/calibration
"""
METHODS_HELP = "; ".join(f"{name}: {method.about}" for name, method in METHODS.items())


@dataclass(frozen=True)
class Predictions:
    """How much is spent on predicting."""

    samples: int = option(20, "draws per prediction", metavar="N", lowest=1)
    tuning_samples: int = option(8, "draws per candidate", metavar="N", lowest=1)
    held_out: int | None = option(
        None, "training images held out for tuning (default: 1000, at most a sixth)", metavar="N", lowest=1
    )
    curvature_images: int = option(500, "images for Gauss-Newton diagonals", metavar="N", lowest=1)
    test_images: int | None = option(None, "use the first N test images (default: all)", metavar="N", lowest=1)


@dataclass(frozen=True, kw_only=True)
class Options:
    task: str = option(REQUIRED, "one of `arturo list`", metavar="TASK", positional=True)
    methods: tuple[str, ...] = option((), f"{METHODS_HELP} (default: {' '.join(DEFAULT)})", metavar="NAME")
    ours: str = option("arturo-default", "the optimizer that trains arTuRO's networks", metavar="NAME")
    theirs: str = option("adamw", "the optimizer that trains the others' networks", metavar="NAME")
    seeds: str = option("3", "a count N for the seeds 0 to N-1, or the seeds themselves; below 1000", metavar="N|A,B,C")
    out: Path = option(Path("runs"), "folder for runs and results", metavar="DIR")
    pool: PoolSize = group(PoolSize, "")
    planning: Planning = group(Planning, "")
    predictions: Predictions = group(Predictions, "the predictions")
    share: Share = group(Share, "the trainings", leave_out=("fold", "validation"))
    machine: Machine = group(Machine, "the machine", leave_out=("parallel",))
    data: DataSource = group(DataSource, "data")


def run(options: Options, argv: Sequence[str]) -> int:
    console = Console()
    task = TASKS[options.task]
    if task.data not in ELSEWHERE:
        raise ConfigError(f"task: calibrate needs a task on {', '.join(ELSEWHERE)}, got {options.task}")
    methods, left_out = usable(options.methods, options.task, options.ours)
    predictions, total = options.predictions, loading.count(task.data)
    held_out = min(HELD_OUT, total // 6) if predictions.held_out is None else predictions.held_out
    subset = total - held_out if options.share.subset is None else options.share.subset
    share = {**flat(options.share), "subset": subset}

    def config(optimizer: str, seed: int) -> RunConfig:
        return RunConfig.for_task(options.task, optimizer, seed, **share, **flat(options.machine))

    optimizers = {"ours": options.ours, "theirs": options.theirs}
    seeds = parse_seeds(options.seeds)
    if max(seeds) >= APART:
        raise ConfigError(
            f"seeds: must be below {APART}, because the seeds of an ensemble are that far apart, got {max(seeds)}"
        )
    pairs = [(name, seed) for seed in seeds for name in methods]
    configs = {(name, seed): configs_of(name, seed, optimizers, config) for name, seed in pairs}
    every = list({c.name: c for mine in configs.values() for c in mine}.values())
    data = provide(task.data, options.data, console)
    other, notes = elsewhere(str(task.data), options.data, console)
    images = Images.split(data, subset, held_out, predictions.test_images, other)
    work = Work(
        predictions.samples,
        predictions.tuning_samples,
        min(predictions.curvature_images, subset),
        TEMPERATURES,
        PRIOR_PRECISIONS,
        seed=0,
    )
    runs = RunSet(every, options.out, options.pool)

    def prediction_seconds(costs: Mapping[Kind, Cost]) -> float:
        """Forward passes, at the speed of a test. What the posteriors' diagonals take is small beside them."""
        known = [costs[kind] for kind in map(kind_of, every) if kind in costs]
        slowest = max((cost.test_seconds for cost in known), default=0.0) / len(data.test_targets)
        predicted = [part for part in (images.test_images, images.elsewhere) if part is not None]
        asked = sum(METHODS[name].passes(work.samples) for name in methods) * sum(map(len, predicted))
        tuning = sum(METHODS[name].tuned for name in methods) * len(TEMPERATURES) * work.tuning_samples * held_out
        return len(seeds) * slowest * (asked + tuning)

    costs = prepare([runs], options.planning, options.data, console, prediction_seconds)
    if costs is None:
        return 0
    code = train_many(runs, costs, options.data, argv, console)
    if code:
        return code
    bad = {c.name for c in every if status_of(c, options.out).state != "finished"}
    diverged = {name: sum(any(c.name in bad for c in configs[name, seed]) for seed in seeds) for name in methods}
    if all(lost == len(seeds) for lost in diverged.values()):
        raise RunError(f"{options.out}: {', '.join(sorted(bad))} diverged; there is nothing to predict with")

    sizes = {"held_out": held_out, "test": len(images.test_labels), "elsewhere": other.name if other else None}
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("methods", total=len(pairs))
        for name, seed in pairs:
            progress.update(bar, description=f"{METHODS[name].label}, seed {seed}")
            if not any(c.name in bad for c in configs[name, seed]):
                outcome, _ = evaluate(name, configs[name, seed], images, replace(work, seed=seed), sizes, options.out)
                outcomes.append(outcome)
            progress.advance(bar)
    first = every[0]
    protocol = {
        "training": f"{first.epochs} epochs, batches of {first.batch_size}, {subset:,} images, {seed_words(seeds)}",
        "held out": f"{held_out:,} other training images",
        "test": f"{sizes['test']:,} images",
        "elsewhere": "none" if images.elsewhere is None else f"{len(images.elsewhere):,} images of {sizes['elsewhere']}",
        "draws per prediction": work.samples,
        "images for Gauss-Newton diagonals": work.curvature_images,
        "ours trained by": options.ours,
        "others trained by": f"{options.theirs}; IVON by itself, with its authors' values",
        "candidates": f"temperatures {words(TEMPERATURES)}; prior precisions {words(PRIOR_PRECISIONS)}",
    }
    tested = len(images.test_labels)
    spread = max((o.scores.accuracy * (1 - o.scores.accuracy) / tested) ** 0.5 for o in outcomes)
    interval = "One seed: no interval." if len(seeds) == 1 else f"Mean ± half of its 95 % t-interval over {len(seeds)} seeds."
    notes += [
        f"{interval} The test set is the same for all: its {tested:,} images give an accuracy a standard error of up to "
        f"{100 * spread:.1f} points on top.",
        f"{chance_words(data.num_classes or 1)} The best ECE and AUROC are sought among methods with at least "
        f"{100 * CLOSE:g} % of the highest accuracy; NLL and Brier score, which guessing cannot win, among all.",
    ]
    if any(outcome.chosen.get("edges") for outcome in outcomes):
        notes.append("(edge): the smallest or the largest value tried; the best may lie beyond it.")
    result = document(options.task, shown(argv), protocol, outcomes, [*notes, *left_out], diverged)
    result.show(console)
    for path in result.write(options.out):
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)
    return 0


def usable(chosen: Sequence[str], task: str, ours: str) -> tuple[list[str], list[str]]:
    """The methods, checked before anything is trained; one that was not asked for and does not suit is left out with a note."""
    once("methods", chosen)
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


def elsewhere(name: str, source: DataSource, console: Console) -> tuple[Examples | None, list[str]]:
    """Images of a data set that no network was trained on; if it is not found, a note instead."""
    other = ELSEWHERE[name]
    try:
        return provide(other, source, console), []
    except DataNotFound:
        return None, [f"No AUROC: {other}, the images from elsewhere, was not found (`arturo fetch {other}`)."]
