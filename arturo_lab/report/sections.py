"""Runs sorted into what can be compared: one section per task and protocol, in it one variant per optimizer and settings."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from arturo_lab.fields import without_unset
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.evidence import Arrival, Estimate, bootstrap_interval, first_reached, holm, median_arrival, paired_t_test
from arturo_lab.report.palette import STYLES, Style, style
from arturo_lab.runs.records import Record
from arturo_lab.tasks.catalog import TASKS

PROTOCOL = ("task", "epochs", "batch_size", "subset", "fold")  # runs that differ in one of these are not compared
PARTS = ("data", "forward", "backward", "optimizer", "other", "test")  # of an epoch's time


@dataclass(frozen=True)
class Variant:
    """The runs of one optimizer with one set of settings, by seed."""

    optimizer: str
    label: str
    look: Style
    runs: tuple[Record, ...]

    def with_status(self, status: str) -> list[Record]:
        return [run for run in self.runs if run.status == status]

    @cached_property
    def finished(self) -> list[Record]:
        return self.with_status("finished")

    @property
    def drawn(self) -> list[Record]:
        """The runs behind the curve: the finished ones; as long as there are none, those under way."""
        return self.finished or [run for run in self.with_status("unfinished") if run.rows]

    @property
    def accuracy(self) -> dict[int, float]:
        """The last epoch's test accuracy by seed, of finished runs: never the best epoch's, which would peek."""
        return {run.config["seed"]: float(run.result["test_accuracy"]) for run in self.finished}

    def curve(self, metric: str) -> list[Estimate | None]:
        """Epoch by epoch over the seeds, as far as all of them go; None where a run has no value."""
        epochs = zip(*(run.series(metric) for run in self.drawn), strict=False)
        found = ([value for value in values if value is not None] for values in epochs)
        return [Estimate.of(values) if len(values) == len(self.drawn) else None for values in found]

    @property
    def times(self) -> list[float]:
        """Mean over the seeds of the training seconds up to the end of each epoch."""
        return [statistics.fmean(times) for times in zip(*(run.wall_seconds for run in self.drawn), strict=False)]

    @property
    def seconds_per_epoch(self) -> float | None:
        """The median over all epochs and seeds: a busy machine slows some epochs, never speeds one up."""
        seconds = [s for run in self.runs for s in run.series("seconds") if s is not None]
        return statistics.median(seconds) if seconds else None

    @property
    def time_split(self) -> dict[str, float]:
        """Mean seconds per epoch by what they were spent on; empty if the runs do not say."""
        rows = [row for run in self.runs for row in run.rows if row.get("seconds_forward") is not None]
        if not rows:
            return {}
        mean = {part: statistics.fmean(row.get(f"seconds_{part}") or 0.0 for row in rows) for part in PARTS if part != "other"}
        training = statistics.fmean(row.get("seconds") or 0.0 for row in rows)
        mean["other"] = max(training - sum(mean[part] for part in ("data", "forward", "backward", "optimizer")), 0.0)
        return {part: mean[part] for part in PARTS}

    def arrivals(self, target: float, clock: str) -> list[Arrival]:
        """When each run reached the target accuracy, in ``clock``: "epochs" or "seconds" of training."""
        result = []
        for run in self.runs:
            times = run.wall_seconds if clock == "seconds" else [float(epoch) for epoch in range(1, len(run.rows) + 1)]
            index = first_reached(run.series("test_accuracy"), target)
            if index is not None:
                result.append(Arrival(times[index], True))
            elif run.status == "diverged":
                result.append(Arrival(math.inf, False))
            elif times:
                result.append(Arrival(times[-1], False))
        return result


@dataclass(frozen=True)
class Summary:
    """A row of the table: what the finished runs of a variant come to."""

    variant: Variant
    accuracy: Estimate | None  # None: no run has finished
    interval: tuple[float, float] | None
    loss: Estimate | None
    best: bool
    p: float | None  # against the best, Holm's correction included; None for the best itself and without two pairs
    pairs: int  # seeds that both have finished
    behind: float | None  # mean difference to the best over those
    epochs_to_target: float | None
    seconds_to_target: float | None
    reached: int  # runs that reached the target


@dataclass(frozen=True)
class Section:
    """All runs of one task under one protocol."""

    protocol: dict[str, Any]
    variants: tuple[Variant, ...]

    @property
    def task(self) -> str:
        return str(self.protocol["task"])

    @property
    def title(self) -> str:
        return TASKS[self.task].title if self.task in TASKS else self.task

    @property
    def seeds(self) -> list[int]:
        return sorted({run.config["seed"] for variant in self.variants for run in variant.runs})

    @property
    def runs(self) -> list[Record]:
        return [run for variant in self.variants for run in variant.runs]

    @cached_property
    def target(self) -> float | None:
        """The middle variant's mean accuracy, rounded down to a percent: half of them get there, and none at once."""
        means = [Estimate.of(list(variant.accuracy.values())).mean for variant in self.variants if variant.finished]
        return math.floor(100 * statistics.median_low(means) + 1e-9) / 100 if means else None

    def best(self) -> Variant | None:
        """The highest mean accuracy. A mean that leaves out diverged runs does not count while there is another."""
        finished = [variant for variant in self.variants if variant.finished]
        whole = [variant for variant in finished if not variant.with_status("diverged")]
        return max(whole or finished, key=lambda v: Estimate.of(list(v.accuracy.values())).mean, default=None)

    def summary(self, target: float | None = None) -> list[Summary]:
        """One row per variant, in their order. ``target`` is an accuracy; None: :attr:`target`."""
        target = self.target if target is None else target
        best = self.best()
        pairs = [paired_differences(best, variant) for variant in self.variants]
        tested = [i for i, differences in enumerate(pairs) if len(differences) > 1]
        p_values = dict(zip(tested, holm([paired_t_test(pairs[i]) for i in tested]), strict=True))
        rows = []
        for i, variant in enumerate(self.variants):
            values = list(variant.accuracy.values())
            losses = [run.result.get("test_loss") for run in variant.finished]
            known = [float(loss) for loss in losses if isinstance(loss, int | float)]
            epochs, seconds = ([] if target is None else variant.arrivals(target, clock) for clock in ("epochs", "seconds"))
            rows.append(
                Summary(
                    variant,
                    Estimate.of(values) if values else None,
                    bootstrap_interval(values),
                    Estimate.of(known) if known and len(known) == len(losses) else None,
                    variant is best,
                    p_values.get(i),
                    len(pairs[i]),
                    statistics.fmean(pairs[i]) if pairs[i] else None,
                    median_arrival(epochs),
                    median_arrival(seconds),
                    sum(arrival.reached for arrival in epochs),
                )
            )
        return rows


def paired_differences(best: Variant | None, other: Variant) -> list[float]:
    """By how much ``best`` is ahead, seed by seed, where both have finished. Empty for the best itself."""
    if best is None or other is best:
        return []
    return [best.accuracy[seed] - other.accuracy[seed] for seed in sorted(set(best.accuracy) & set(other.accuracy))]


def sections(records: Sequence[Record]) -> list[Section]:
    """Sort runs into sections, in the order of the laboratory's tasks, then by name."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(json.dumps([record.config.get(key) for key in PROTOCOL]), []).append(record)
    tasks = list(TASKS)

    def order(group: list[Record]) -> tuple[Any, ...]:
        config = group[0].config
        task = config["task"]
        return tasks.index(task) if task in tasks else len(tasks), task, config["epochs"], str(config.get("subset"))

    return [
        Section({key: group[0].config.get(key) for key in PROTOCOL}, tuple(variants(group)))
        for group in sorted(groups.values(), key=order)
    ]


def variants(records: Sequence[Record]) -> list[Variant]:
    """Runs that differ in nothing but the seed belong together. Variants of one optimizer are labelled by what differs."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        # An option that a package or we gained since, and that is off, makes no other variant.
        rest = {key: value for key, value in without_unset(record.config).items() if key not in ("seed", "format")}
        if isinstance(rest.get("settings"), dict):
            rest["settings"] = without_unset(rest["settings"])
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append(record)
    by_optimizer: dict[str, list[list[Record]]] = {}
    for group in sorted(groups.values(), key=lambda group: sorting_key(flattened(group[0].config))):
        by_optimizer.setdefault(group[0].config["optimizer"], []).append(sorted(group, key=lambda run: run.config["seed"]))
    known = [*OPTIMIZERS, *(name for name in STYLES if name not in OPTIMIZERS)]
    result = []
    for name in sorted(by_optimizer, key=lambda name: (known.index(name) if name in known else len(known), name)):
        flat = [flattened(group[0].config) for group in by_optimizer[name]]
        differing = [key for key in dict.fromkeys(k for f in flat for k in f) if len({repr(f.get(key)) for f in flat}) > 1]
        title = OPTIMIZERS[name].label if name in OPTIMIZERS else name
        for number, (group, values) in enumerate(zip(by_optimizer[name], flat, strict=True)):
            what = ", ".join(f"{key} {values.get(key, 'unset')}" for key in differing if key != "seed")
            result.append(Variant(name, f"{title} ({what})" if what else title, style(name, number), tuple(group)))
    return result


def sorting_key(values: dict[str, Any]) -> list[tuple[str, bool, float, str]]:
    """An order for configs: key by key, numbers by size and before anything else."""
    numbers = {key: isinstance(value, int | float) for key, value in values.items()}
    return [(key, not numbers[key], float(values[key]) if numbers[key] else 0.0, repr(values[key])) for key in sorted(values)]


def flattened(config: dict[str, Any]) -> dict[str, Any]:
    """A config with the optimizer's settings beside the rest.

    Example:
        >>> flattened({"seed": 1, "settings": {"lr": 0.1}})
        {'seed': 1, 'lr': 0.1}
    """
    settings = config.get("settings")
    rest = {key: value for key, value in config.items() if key != "settings"}
    return {**rest, **settings} if isinstance(settings, dict) else config
