"""What differs from the paper's protocol, in words. Derived from the configs that were run, so that no list can go stale."""

from __future__ import annotations

from collections.abc import Sequence

from arturo_lab.data import loading
from arturo_lab.optimizers.catalog import OPTIMIZERS, PAPERS
from arturo_lab.paper import published
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS


def deviations(configs: Sequence[RunConfig], timing: bool = False) -> list[str]:
    """One line each, the ones that change the numbers most first."""
    result = []
    shortened = False
    for task in dict.fromkeys(config.task for config in configs):
        config = next(config for config in configs if config.task == task)
        whole, images = TASKS[task], loading.count(TASKS[task].data)
        differing = []
        if config.epochs != whole.epochs:
            differing.append(f"{count(config.epochs, 'epoch')} instead of {whole.epochs}")
        if config.training_images != images:
            differing.append(f"{config.training_images:,} of {images:,} training images")
        if config.batch_size != whole.batch_size:
            differing.append(f"batches of {config.batch_size} instead of {whole.batch_size}")
        if differing:
            shortened = True
            result.append(f"{task}: {', '.join(differing)}.")
        if task not in published.TASKS:
            result.append(f"{task} is not in the paper.")
    seeds = len({config.seed for config in configs})
    if timing:
        result.append(
            f"Times are medians over {count(seeds, 'round')} in which the optimizers take turns, without the first epoch of a "
            f"training; the paper averages whole trainings on {published.MACHINE}. Only the ratios compare."
        )
    elif seeds != published.SEEDS:
        result.append(f"{count(seeds, 'seed')} instead of {published.SEEDS}.")
    if any(config.machine.amp for config in configs):
        result.append("Forward pass and loss in bfloat16 where torch considers it safe, not in float32 throughout.")
    optimizers = {config.optimizer for config in configs}
    tasks = {config.task for config in configs}
    if shortened and not timing and tasks & set(published.TASKS):
        result.append(
            "The hyperparameters are the paper's, tuned for its whole trainings and not again for these short ones. The "
            "learning rate falls at the same shares of a training, 1/2 and 3/4."
        )
    own = [entry.label for name, entry in OPTIMIZERS.items() if name in optimizers and name not in PAPERS]
    if own:
        result.append(f"The values of {', '.join(own)} are ours, as the paper prints none (docs/ablations.md).")
    if "arturo" in optimizers:
        result.append("arTuRO is our exact form (dual solved, settled start); arTuRO (paper) is the published one.")
    if "adam" in optimizers and not timing and tasks & set(published.TASKS):
        result.append("Adam uses the weight decay of the paper's table; the authors' own runs passed none.")
    if "fmnist-resnet18" in tasks and not timing:
        result.append("fmnist-resnet18: 120 epochs are the authors' configuration; the paper's text says 160.")
    return result
