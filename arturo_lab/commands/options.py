"""Groups of options that several subcommands share, declared once."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from arturo_lab.errors import ConfigError
from arturo_lab.fields import option


@dataclass(frozen=True)
class DataFolder:
    """Where data comes from."""

    data_dir: Path | None = option(None, "folder searched for data first (default: $ARTURO_DATA)", metavar="DIR")

    def check_folder(self) -> None:
        """A typo is an error even where the data comes with a package and needs no folder."""
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise ConfigError(f"data-dir: {self.data_dir} {'is not a folder' if self.data_dir.exists() else 'does not exist'}")


@dataclass(frozen=True)
class DataSource(DataFolder):
    """Where data comes from, and whether to fetch it."""

    download: bool = option(False, "fetch the data if it is not found")
    mirror: str | None = option(None, "download from URL/FILE instead of the official address", metavar="URL")


@dataclass(frozen=True)
class PoolSize:
    """How many trainings at once, and where."""

    jobs: int | None = option(None, "trainings at the same time (default: 1; with --ray: all that fit)", metavar="K", lowest=1)
    ray: str | None = option(
        None,
        "train on the Ray cluster at this address; auto: the one this machine belongs to (docs/cluster.md)",
        metavar="ADDRESS",
    )


@dataclass(frozen=True)
class LogTo:
    """External dashboards."""

    log: tuple[str, ...] = option((), "also log to tensorboard, wandb or mlflow, below OUT (docs/logging.md)", metavar="NAME")


@dataclass(frozen=True)
class Against:
    """What everything is compared with."""

    against: str | None = option(
        None,
        "optimizer that the others are tested against, or all for every pair (default: adamw, else every pair)",
        metavar="NAME",
    )


@dataclass(frozen=True)
class Goal(Against):
    """What is compared with what, and the result whose time is measured."""

    target: float | None = option(
        None,
        "target of the time-to-target column in the task's metric, accuracies between 0 and 1 (default: what the middle "
        "optimizer reaches)",
        metavar="F",
    )

    def __post_init__(self) -> None:
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"target: must be a finite number, such as 0.9 for 90 % accuracy, got {self.target:g}")

    def check_target(self, fractions: bool) -> None:
        """``fractions``: whether the metric of a task is one."""
        if fractions and self.target is not None and not 0 < self.target <= 1:
            raise ConfigError(f"target: must be above 0 and at most 1, such as 0.9, got {self.target:g}")


def check_out(out: Path, name: str = "out") -> None:
    """Whether files can be written to a folder, or where it will be: said before hours of training. Nothing stays behind.

    Args:
        name: of the option.
    """
    try:
        place = out
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise ConfigError(f"{name}: {place} is a file; choose another --{name}")
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise ConfigError(f"{name}: cannot write to {out} ({error.strerror or error}); choose another --{name}") from error
