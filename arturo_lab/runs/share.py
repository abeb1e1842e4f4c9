"""How much of a task is trained, and how its lr changes."""

from __future__ import annotations

from dataclasses import dataclass

from arturo_lab.errors import ConfigError
from arturo_lab.fields import check, option
from arturo_lab.tasks.schedules import SCHEDULES

MOST_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Share:
    """Epochs, batch size, training images and lr schedule; None is the task's own, or all images."""

    epochs: int | None = option(
        None,
        "length of the training; the schedule is stretched to fit (default: the task's own)",
        metavar="E",
        lowest=1,
        highest=MOST_EPOCHS,
    )
    batch_size: int | None = option(None, "examples per step (default: the task's own)", metavar="B", lowest=1)
    subset: int | None = option(
        None, "train on the first N training images of a fixed shuffled order (default: all)", metavar="N", lowest=1
    )
    fold: str | None = option(
        None,
        "hold out the k-th of K parts of the training images and test on it instead of the test images",
        metavar="k/K",
    )
    validation: str | None = option(
        None,
        "k/K: hold out the k-th of K parts of the training images, measure every epoch on it, and test once, after the last "
        "epoch",
        metavar="k/K",
    )
    schedule: str | None = option(
        None,
        "lr schedule: constant, cosine (to 0) or milestones (default: the optimizer's, else the task's)",
        choices=tuple(SCHEDULES),
    )
    warmup: float | None = option(
        None,
        "fraction of the steps over which lr rises from 0, e.g. 0.1 (default: the optimizer's, usually 0)",
        metavar="F",
        lowest=0,
        highest=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.fold is not None and self.validation is not None:
            raise ConfigError(
                f"validation: a fold has no test to keep for the end; leave out one of {self.fold} and {self.validation}"
            )

    @property
    def held_out(self) -> str | None:
        """The part of the training images that is not trained on, whatever for."""
        return self.fold or self.validation
