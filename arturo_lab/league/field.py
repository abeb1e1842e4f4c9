"""Who plays, on what, and by which rules. docs/league.md explains them."""

from __future__ import annotations

from dataclasses import dataclass

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import Settings
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import once
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tuning.spaces import SPACES, space

RULES = 1  # raise it when what the rows mean changes: all of them are made again
REFERENCE = "adamw-warmup"  # whose tuned result is the target of the time columns
OURS = "adaarturo"  # whose losses are listed
VALIDATION = "1/6"  # of the training examples: every curve and every choice is made on it
TRIAL_SEED = 100  # none of those that count at the end
# On validation folds of these AdaArturo's constants were chosen, by the rules in experiments/LOG.md; the other tasks judge.
# (The largest lr that counts, 0.003, which untouched runs do not reach, was also tried on the digits MLP and the two tables.)
DEVELOPED = (
    "digits-mlp-batch-1",
    "fmnist-autoencoder",
    "byte-gru",
    "fmnist-small-resnet",
    "cifar10-cnn-short",
    "byte-transformer",
)
PLASTIC = 1.2207440846057596  # root of x^4 = x + 1, the ratio of Roberts' sequence in three dimensions

# The tasks, cheap ones first, and about how many seconds AdamW takes on one core: what a plan says before anything is measured.
SECONDS = {
    "digits-mlp": 1.5,
    "breast-cancer-mlp": 1.0,
    "diabetes-mlp": 1.0,
    "digits-mlp-batch-1": 8.0,
    "fmnist-autoencoder": 6.0,
    "fmnist-vae": 10.0,
    "byte-gru": 40.0,
    "cifar10-vit": 60.0,
    "fmnist-small-resnet": 65.0,
    "fmnist-cnn-short": 70.0,
    "cifar10-cnn-short": 80.0,
    "cifar100-cnn-short": 85.0,
    "byte-transformer": 120.0,
}
# Times AdamW's, about: on networks this small a matrix product more or less counts.
RELATIVE = {"muon": 1.4, "soap-warmup": 2.2, "ivon": 1.2, "arturo-default": 1.2, "adaarturo": 1.7}
ENTRANTS = (
    "sgd",
    "adamw-warmup",
    "lamb",
    "adabelief",
    "lion",
    "prodigy",
    "schedulefree-adamw-warmup",
    "muon",
    "soap-warmup",
    "ivon",
    "arturo-default",
    "adaarturo",
)


@dataclass(frozen=True)
class League:
    """Everything that decides which runs there are.

    Args:
        tasks: cheapest first.
        optimizers: all of them in every table.
        seeds: of a result, 0 to seeds - 1.
        trials: configurations that each optimizer may try on each task; the first is its untouched one.
        fidelity: share of a task's epochs that a trial is trained for; at least one epoch.
        threads: of each run.

    Example:
        >>> league = League(("digits-mlp",), ("sgd", "adaarturo"), trials=3)
        >>> [round(point[0], 3) for point in league.points()]  # the same for everybody
        [0.319, 0.138]
        >>> league.trial_settings("sgd")[1]["lr"], league.trial_settings("adaarturo")[1]["lr"]
        (0.009068, 0.0009068)
        >>> league.trial_epochs("digits-mlp")
        8
    """

    tasks: tuple[str, ...] = tuple(SECONDS)
    optimizers: tuple[str, ...] = ENTRANTS
    seeds: int = 3
    trials: int = 8
    fidelity: float = 1 / 3
    threads: int = 1

    def __post_init__(self) -> None:
        once("tasks", self.tasks)
        once("optimizers", self.optimizers)
        for task in self.tasks:
            _ = TASKS[task]
        for name in self.optimizers:
            _ = OPTIMIZERS[name]
            if name not in SPACES["fair"] or len(space("fair", name).dimensions) != 3:
                raise ConfigError(
                    f"optimizers: {name} needs a fair search space of three dimensions, as everybody's, in "
                    "arturo_lab/tuning/spaces.py; arturo compare takes it without"
                )

    def points(self) -> list[tuple[float, ...]]:
        """Roberts' additive recurrence in the unit cube: even for any count, and the first n stay when n grows."""
        steps = [PLASTIC ** -(i + 1) for i in range(3)]
        return [tuple((0.5 + n * step) % 1 for step in steps) for n in range(1, self.trials)]

    def trial_settings(self, optimizer: str) -> list[Settings]:
        """The arguments of each trial; the first has no overrides."""
        chosen = space("fair", optimizer)
        values = [{name: float(f"{x:.4g}") for name, x in chosen.point(point).items()} for point in self.points()]
        return [{}, *(chosen.settings(point) for point in values)]

    def trial_epochs(self, task: str) -> int:
        return shortened(task, self.fidelity)

    def config(
        self, task: str, optimizer: str, seed: int, settings: Settings | None = None, epochs: int | None = None, *, test: bool
    ) -> RunConfig:
        """A run that holds out the validation part; it looks at the test set only if ``test``, once, at its end."""
        part = {"validation": VALIDATION} if test else {"fold": VALIDATION}
        return RunConfig.for_task(task, optimizer, seed, epochs, overrides=settings, threads=self.threads, **part)


def shortened(task: str, share: float) -> int:
    """A share of a task's epochs.

    Example:
        >>> shortened("digits-mlp", 1 / 3), shortened("fmnist-small-resnet", 0.01)
        (8, 1)
    """
    return max(1, round(share * TASKS[task].epochs))


def label(optimizer: str) -> str:
    return OPTIMIZERS[optimizer].label
