"""What one training is, as a value: two equal configs give the same numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from arturo_lab import fields
from arturo_lab.data import loading
from arturo_lab.data.folds import Fold
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers import settings as optimizer_settings
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.optimizers.settings import Settings
from arturo_lab.references import folder_name
from arturo_lab.registry import unknown
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.schedules import SCHEDULES, Schedule

FORMAT = 2  # of a run folder: what the keys of config.json and the entries of checkpoint.pt mean


@dataclass(frozen=True)
class RunConfig:
    """One training: a task, an optimizer, a seed, and everything else its numbers depend on. Checked; an error names the key.

    :meth:`for_task` fills in the task's and the optimizer's own values. A new option is a new field of :class:`Share` or
    :class:`Machine`, and nothing else: as long as it is None or False it changes no key.

    Example:
        >>> config = RunConfig.for_task("digits-mlp", "adam", seed=1, threads=1)
        >>> config.epochs, config.batch_size, config.settings["lr"], config.machine.threads
        (25, 32, 0.001, 1)
        >>> RunConfig.for_task("digits-mlp", "adam", epochs=0)
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: epochs: must be an integer >= 1, got 0
    """

    task: str
    optimizer: str
    seed: int  # of the initial weights, the batch order and the dropout masks: the same for every optimizer
    settings: Settings = field(hash=False)  # every argument of the optimizer
    share: Share
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        _ = TASKS[self.task], OPTIMIZERS[self.optimizer]  # an unknown name raises
        if type(self.seed) is not int or self.seed < 0:
            raise ConfigError(f"seed: must be an integer >= 0, got {self.seed!r}")
        if self.seed >= 2**63:
            raise ConfigError(f"seed: must be below 2**63, got {self.seed}")
        for key in ("epochs", "batch_size"):
            if getattr(self.share, key) is None:
                raise ConfigError(f"{key}: must be an integer >= 1, got None")
        subset = self.share.subset
        if subset is not None and subset > (examples := loading.count(TASKS[self.task].data)):
            raise ConfigError(f"subset: {self.task} has {examples} training examples, got {subset}")
        for key, part in (("fold", self.share.fold), ("validation", self.share.validation)):
            if part is not None and (parts := Fold.parse(part, key).parts) > (examples := self._examples):
                raise ConfigError(f"{key}: {examples} training examples cannot be {parts} parts")
        if not isinstance(self.settings, dict):
            raise ConfigError(f"settings: must be a dict, got {self.settings!r}")
        entry = OPTIMIZERS[self.optimizer]
        if self.machine.compile and (entry.create_graph or entry.exact_diagonal):
            what = "the exact diagonal" if entry.exact_diagonal else "a gradient to differentiate again"
            raise ConfigError(f"compile: {self.optimizer} needs {what}, which a compiled network does not give; leave it out")
        if self.machine.amp and entry.exact_diagonal:
            raise ConfigError(f"amp: BackPACK, where {self.optimizer} gets its diagonal, knows no bfloat16; leave it out")
        try:
            torch.device(self.machine.device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(
                f"device: must be a device of torch such as cpu, cuda or cuda:1, got {self.machine.device!r}"
            ) from error

    @classmethod
    def for_task(
        cls,
        task: str,
        optimizer: str,
        seed: int = 0,
        epochs: int | None = None,
        *,
        overrides: Settings | None = None,
        **options: Any,
    ) -> RunConfig:
        """The task's own epochs and batch size and the optimizer's own values, except for what is named here.

        Args:
            overrides: arguments of the optimizer.
            options: fields of :class:`Share` and :class:`Machine`.
        """
        if surplus := [name for name in options if name not in (*fields.names(Share), *fields.names(Machine))]:
            raise TypeError(f"for_task() has no option {surplus[0]!r}")
        default, entry = TASKS[task], OPTIMIZERS[optimizer]
        options["epochs"] = default.epochs if epochs is None else epochs
        if options.get("batch_size") is None:
            options["batch_size"] = default.batch_size
        if entry.schedule is not None:
            options["schedule"] = None  # one that brings a schedule is not defined with another
        share, machine = fields.nested(Share, options), fields.nested(Machine, options)
        images = 0
        if entry.from_images is not None:  # to count may take as long as to read
            images = loading.count(default.data) if share.subset is None else share.subset
            images = images if share.held_out is None else Fold.parse(share.held_out).training_images(images)
        return cls(task, optimizer, seed, optimizer_settings.resolve(optimizer, task, images, overrides), share, machine)

    def changed(self, **values: Any) -> RunConfig:
        """The same with other values, by the keys of :meth:`to_json`."""
        return self.from_json({**self.to_json(), **values})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """What :meth:`to_json` gave. An unknown or missing key, or another format, is an error."""
        values = dict(values)
        written = values.pop("format", 1)
        if written != FORMAT:
            raise ConfigError(f"config: has format {written!r}, this version reads {FORMAT}")
        known = fields.names(cls)
        for key in values:
            if key not in known:
                raise unknown("config", key, known)
        missing = [name for name in (*fields.names(cls, required=True), "epochs", "batch_size") if name not in values]
        if missing:
            raise ConfigError(f"config: lacks {', '.join(missing)}")
        return fields.nested(cls, values)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **fields.flat(self)}

    def identity(self) -> dict[str, Any]:
        """What tells two configs apart: everything that is neither None nor False, in the config and in the settings.

        Both are as good as not named. So an option that a package or we add changes no key until somebody uses it; a change
        of what the keys mean is another FORMAT.
        """
        return fields.without_unset({**self.to_json(), "settings": fields.without_unset(self.settings)})

    @property
    def epochs(self) -> int:
        assert self.share.epochs is not None
        return self.share.epochs

    @property
    def batch_size(self) -> int:
        assert self.share.batch_size is not None
        return self.share.batch_size

    @property
    def training_images(self) -> int:
        """That it trains on: of the subset, without the part that is held out."""
        part = self.share.held_out
        return self._examples if part is None else Fold.parse(part).training_images(self._examples)

    @property
    def _examples(self) -> int:
        return self.share.subset or loading.count(TASKS[self.task].data)

    @property
    def steps_per_epoch(self) -> int:
        task = TASKS[self.task]
        return task.epoch_steps or task.steps(self.training_images, self.batch_size)

    @property
    def lr_schedule(self) -> Schedule:
        """The run's, else the optimizer's, else the task's."""
        chosen = self.share.schedule
        return SCHEDULES[chosen] if chosen else OPTIMIZERS[self.optimizer].schedule or TASKS[self.task].schedule

    @property
    def lr_warmup(self) -> float:
        """The run's, else the optimizer's."""
        return OPTIMIZERS[self.optimizer].warmup if self.share.warmup is None else self.share.warmup

    @property
    def key(self) -> str:
        """Eight hexadecimal digits that differ between configs, the same on every machine."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Of its folder under ``OUT/TASK/``."""
        return f"{folder_name(self.optimizer)}-seed{self.seed}-{self.key}"

    @property
    def folder(self) -> Path:
        """Where it is under ``OUT``."""
        return Path(folder_name(self.task)) / self.name
