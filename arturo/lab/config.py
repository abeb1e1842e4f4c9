"""What one training is, as a value: two equal configs give the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

from arturo.lab.errors import ConfigError
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.tasks import TASKS


@dataclass(frozen=True)
class RunConfig:
    """One training: a task, an optimizer, a seed. Checked when made; an error names the key.

    Example:
        >>> RunConfig.for_task("digits-mlp", "adam", seed=1)
        RunConfig(task='digits-mlp', optimizer='adam', seed=1, epochs=25, batch_size=32)
        >>> RunConfig("digits-mlp", "adam", seed=0, epochs=0, batch_size=32)
        Traceback (most recent call last):
        ...
        arturo.lab.errors.ConfigError: epochs: must be an integer >= 1, got 0
    """

    task: str
    optimizer: str
    seed: int  # of the start, the batch order and the dropout masks: the same for every optimizer
    epochs: int
    batch_size: int

    def __post_init__(self) -> None:
        _ = TASKS[self.task], OPTIMIZERS[self.optimizer]  # an unknown name raises
        for key, lowest in (("seed", 0), ("epochs", 1), ("batch_size", 1)):
            value = getattr(self, key)
            if type(value) is not int or value < lowest:
                raise ConfigError(f"{key}: must be an integer >= {lowest}, got {value!r}")

    @classmethod
    def for_task(cls, task: str, optimizer: str, seed: int = 0, epochs: int | None = None) -> RunConfig:
        """The task's own batch size and, unless given, its number of epochs."""
        default = TASKS[task]
        return cls(task, optimizer, seed, default.epochs if epochs is None else epochs, default.batch_size)
