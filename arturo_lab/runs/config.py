"""What one training is, as a value: two equal configs give the same numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from arturo_lab.data.folds import Fold
from arturo_lab.data.sources import DATA
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers import settings as optimizer_settings
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import Settings
from arturo_lab.registry import unknown
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.parallel import PARALLEL

AMP = ("bf16",)  # what computes in lower precision

LATER = ("fold", "parallel", "channels_last")


@dataclass(frozen=True)
class RunConfig:
    """One training: a task, an optimizer, a seed, and everything else its numbers depend on. Checked; an error names the key.

    :meth:`for_task` fills in what a task and an optimizer have of their own.

    Example:
        >>> config = RunConfig.for_task("digits-mlp", "adam", seed=1)
        >>> config.epochs, config.batch_size, config.settings["lr"]
        (25, 32, 0.001)
        >>> RunConfig.for_task("digits-mlp", "adam", epochs=0)
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: epochs: must be an integer >= 1, got 0
    """

    task: str
    optimizer: str
    seed: int  # of the start, the batch order and the dropout masks: the same for every optimizer
    epochs: int
    batch_size: int
    settings: Settings = field(hash=False)  # every argument of the optimizer
    subset: int | None = None  # so many training images; None: all
    device: str = "cpu"
    threads: int | None = None  # None: the task's, else torch's choice
    amp: str | None = None  # "bf16": forward pass and loss under autocast
    compile: bool = False  # the network through torch.compile
    fold: str | None = None  # "2/8": test on the second of eight parts of the training images, train on the others
    parallel: str | None = None  # how several processes share the work; None: there is one
    channels_last: bool = False  # images and filters with their channels innermost in memory: other kernels, other roundings

    def __post_init__(self) -> None:
        _ = TASKS[self.task], OPTIMIZERS[self.optimizer]  # an unknown name raises
        for key, lowest in (("seed", 0), ("epochs", 1), ("batch_size", 1), ("subset", 1), ("threads", 1)):
            value = getattr(self, key)
            if (value is not None or key not in ("subset", "threads")) and (type(value) is not int or value < lowest):
                raise ConfigError(f"{key}: must be an integer >= {lowest}, got {value!r}")
        if self.seed >= 2**63:
            raise ConfigError(f"seed: must be below 2**63, got {self.seed}")
        images = DATA[TASKS[self.task].data].train_images
        if self.subset is not None and self.subset > images:
            raise ConfigError(f"subset: {self.task} has {images} training images, got {self.subset}")
        if self.fold is not None and (parts := Fold.parse(self.fold).parts) > (self.subset or images):
            raise ConfigError(f"fold: {self.subset or images} training images cannot be {parts} parts")
        if not isinstance(self.settings, dict):
            raise ConfigError(f"settings: must be a dict, got {self.settings!r}")
        if self.amp is not None and self.amp not in AMP:
            raise unknown("amp", str(self.amp), AMP)
        if self.parallel is not None and self.parallel not in PARALLEL:
            raise unknown("parallel", str(self.parallel), PARALLEL)
        for key in ("compile", "channels_last"):
            if not isinstance(getattr(self, key), bool):
                raise ConfigError(f"{key}: must be true or false, got {getattr(self, key)!r}")
        entry = OPTIMIZERS[self.optimizer]
        if self.compile and (entry.create_graph or entry.exact_diagonal):
            what = "the exact diagonal" if entry.exact_diagonal else "a gradient to differentiate again"
            raise ConfigError(f"compile: {self.optimizer} needs {what}, which a compiled network does not give; leave it out")
        if self.amp and entry.exact_diagonal:
            raise ConfigError(f"amp: BackPACK, where {self.optimizer} gets its diagonal, knows no bfloat16; leave it out")
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"device: must be a device of torch such as cpu, cuda or cuda:1, got {self.device!r}") from error

    @classmethod
    def for_task(
        cls,
        task: str,
        optimizer: str,
        seed: int = 0,
        epochs: int | None = None,
        *,
        batch_size: int | None = None,
        subset: int | None = None,
        overrides: Settings | None = None,
        device: str = "cpu",
        threads: int | None = None,
        amp: str | None = None,
        compile: bool = False,
        fold: str | None = None,
        parallel: str | None = None,
        channels_last: bool = False,
    ) -> RunConfig:
        """The task's own epochs and batch size, the optimizer's own values, unless given. ``overrides`` are of the latter."""
        default = TASKS[task]
        images = DATA[default.data].train_images if subset is None else subset
        if fold is not None:
            images = Fold.parse(fold).training_images(images)
        return cls(
            task,
            optimizer,
            seed,
            default.epochs if epochs is None else epochs,
            default.batch_size if batch_size is None else batch_size,
            optimizer_settings.resolve(optimizer, task, images, overrides),
            subset,
            device,
            threads,
            amp,
            compile,
            fold,
            parallel,
            channels_last,
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """What :meth:`to_json` gave. An unknown or missing key is an error."""
        keys = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in keys:
                raise unknown("config", key, keys)
        missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in values]
        if missing:
            raise ConfigError(f"config: lacks {', '.join(missing)}")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def identity(self) -> dict[str, Any]:
        """What tells two configs apart: :meth:`to_json` without the arguments of the optimizer that are None or False.

        Those are as good as not given. A package that gains an option does not make every stored run another one. Nor do
        we: what is ``LATER`` than the first stored runs is left out where it is None or False.
        """
        values = {**self.to_json(), "settings": optimizer_settings.given(self.settings)}
        return {key: value for key, value in values.items() if key not in LATER or value not in (None, False)}

    @property
    def training_images(self) -> int:
        """That it trains on: of the subset, without the fold that is held out."""
        images = self.subset or DATA[TASKS[self.task].data].train_images
        return images if self.fold is None else Fold.parse(self.fold).training_images(images)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.training_images / self.batch_size)

    @property
    def key(self) -> str:
        """Eight hexadecimal digits that differ between configs, the same on every machine."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Of its folder under ``OUT/TASK/``."""
        return f"{self.optimizer}-seed{self.seed}-{self.key}"
