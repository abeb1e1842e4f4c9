"""How much of a task is trained."""

from __future__ import annotations

from dataclasses import dataclass

from arturo_lab.fields import check, option

MOST_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Share:
    """Epochs, batch size and training images; None is the task's own number, or all images."""

    epochs: int | None = option(
        None,
        "length of the training; the schedule is stretched to fit (default: the task's own)",
        metavar="E",
        lowest=1,
        highest=MOST_EPOCHS,
    )
    batch_size: int | None = option(None, "default: the task's own", metavar="B", lowest=1)
    subset: int | None = option(
        None, "train on the first N training images of a fixed shuffled order (default: all)", metavar="N", lowest=1
    )
    fold: str | None = option(
        None,
        "k/K: hold out the k-th of K parts of the training images and test on it instead of the test images",
        metavar="k/K",
    )

    def __post_init__(self) -> None:
        check(self)
