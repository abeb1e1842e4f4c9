"""Runs sorted into what can be compared: one section per task and protocol, in it one variant per optimizer and settings."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from arturo_lab.fields import without_unset
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.evidence import Arrival, Estimate, first_reached
from arturo_lab.report.metric import ShownMetric, final_value, loss_unit, metric_of
from arturo_lab.report.palette import STYLES, Style, distinct, style
from arturo_lab.runs.records import Record
from arturo_lab.tasks.catalog import TASKS

PROTOCOL = ("task", "epochs", "batch_size", "subset", "fold", "validation")  # runs that differ in one of these are not compared
PARTS = ("data", "forward", "backward", "optimizer", "other", "test")  # of an epoch's time


class Point(NamedTuple):
    """A curve at one epoch: the mean over the seeds, the lowest and the highest of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Variant:
    """The runs of one optimizer with one set of settings, by seed."""

    optimizer: str
    label: str
    look: Style
    runs: tuple[Record, ...]
    metric: ShownMetric

    def with_status(self, status: str) -> list[Record]:
        return [run for run in self.runs if run.status == status]

    @cached_property
    def finished(self) -> list[Record]:
        return self.with_status("finished")

    @property
    def drawn(self) -> list[Record]:
        """The runs behind the curve: the finished ones; as long as there are none, those under way."""
        return self.finished or [run for run in self.with_status("unfinished") if run.rows]

    @cached_property
    def values(self) -> dict[int, float]:
        """The last epoch's metric by seed, of finished runs."""
        by_seed = {run.config["seed"]: final_value(run.result, self.metric) for run in self.finished}
        return {seed: value for seed, value in by_seed.items() if value is not None}

    @property
    def curve_ends(self) -> list[float]:
        """The last value of each finished run's curve: with ``--validation`` not the result, which is of the test set."""
        ends = (run.series(self.metric.name)[-1:] for run in self.finished)
        return [end[0] for end in ends if end and end[0] is not None]

    @property
    def estimate(self) -> Estimate | None:
        """Of the metric over the finished runs."""
        return Estimate.of(list(self.values.values())) if self.values else None

    @property
    def over(self) -> set[int]:
        """Seeds whose run finished with a number or diverged."""
        return set(self.values) | {run.config["seed"] for run in self.with_status("diverged")}

    @property
    def diverged_share(self) -> float:
        return len(self.with_status("diverged")) / len(self.over) if self.over else 0.0

    @property
    def standing(self) -> tuple[float, float]:
        """The order of variants, best first: a diverged run is worse than any number, then the mean decides."""
        estimate = self.estimate
        return self.diverged_share, math.inf if estimate is None else self.metric.ahead(0.0, estimate.mean)

    def curve(self, metric: str) -> list[Point | None]:
        """Epoch by epoch over the seeds, up to the shortest run; None where a run has no value."""
        epochs = zip(*(run.series(metric) for run in self.drawn), strict=False)
        known = ([value for value in values if value is not None] for values in epochs)
        return [
            Point(statistics.fmean(values), min(values), max(values)) if len(values) == len(self.drawn) else None
            for values in known
        ]

    @property
    def times(self) -> list[float]:
        """Mean over the seeds of the training seconds up to the end of each epoch."""
        return [statistics.fmean(times) for times in zip(*(run.wall_seconds for run in self.drawn), strict=False)]

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
        """When each run reached the target, in ``clock``: "epochs" or "seconds" of training. Only a run that is not over may
        still get there; one that is over and did not never will."""
        result = []
        for run in self.runs:
            times = run.wall_seconds if clock == "seconds" else [float(epoch) for epoch in range(1, len(run.rows) + 1)]
            index = first_reached(run.series(self.metric.name), target, self.metric.higher)
            if index is not None:
                result.append(Arrival(times[index], True))
            elif run.status != "unfinished":
                result.append(Arrival(math.inf, False))
            elif times:
                result.append(Arrival(times[-1], False))
        return result


@dataclass(frozen=True)
class Section:
    """All runs of one task under one protocol. ``aim`` is the target of the times; None: what the middle variant reaches."""

    protocol: dict[str, Any]
    variants: tuple[Variant, ...]
    aim: float | None = None

    @property
    def task(self) -> str:
        return str(self.protocol["task"])

    @property
    def title(self) -> str:
        known = TASKS.find(self.task)
        return self.task if known is None else known.title

    @property
    def seeds(self) -> list[int]:
        return sorted({run.config["seed"] for variant in self.variants for run in variant.runs})

    @property
    def runs(self) -> list[Record]:
        return [run for variant in self.variants for run in variant.runs]

    @property
    def metric(self) -> ShownMetric:
        return self.variants[0].metric

    @property
    def on_validation(self) -> bool:
        """Whether curves are of a part of the training examples that is held out."""
        return self.protocol.get("validation") is not None

    def on_curves(self, metric: ShownMetric) -> ShownMetric:
        """A metric as its curves are called."""
        called = metric.title.replace("test ", "validation ", 1)
        return dataclasses.replace(metric, called=called) if self.on_validation else metric

    @property
    def ranked_best(self) -> list[Variant]:
        """All that share the best mean."""
        return [variant for variant in self.variants if self.best is not None and variant.standing == self.best.standing]

    @property
    def loss_unit(self) -> str:
        return loss_unit(self.task, self.metric)

    @cached_property
    def target(self) -> float | None:
        """What most seeds of the middle variant end at or better, on its curve, as a round number: half of the variants get
        there, and none at once."""
        if self.aim is not None:
            return self.aim
        worse_half = statistics.median_low if self.metric.higher else statistics.median_high
        ends = [worse_half(values) for variant in self.variants if (values := variant.curve_ends)]
        if not ends:
            return None
        middle = worse_half(ends)
        return self.metric.rounded_target(middle)

    @property
    def ranked(self) -> list[Variant]:
        """The variants with a result, best first."""
        return sorted((variant for variant in self.variants if variant.over), key=lambda variant: variant.standing)

    @property
    def best(self) -> Variant | None:
        """The best mean; of those with fewest diverged runs."""
        return next((variant for variant in self.ranked if variant.values), None)


def on_shared_seeds(variants: Sequence[Variant]) -> list[Variant]:
    """The same with the seeds alone on which all of them are over; without such a seed, as they are."""
    shared = set.intersection(*(variant.over for variant in variants)) if variants else set()
    if not shared:
        return list(variants)
    kept = ((variant, [run for run in variant.runs if run.config["seed"] in shared]) for variant in variants)
    return [dataclasses.replace(variant, runs=tuple(runs)) for variant, runs in kept]


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
    metric = metric_of(records)
    known = [*OPTIMIZERS, *(name for name in STYLES if name not in OPTIMIZERS)]
    labelled = labels(list(by_optimizer))
    result = []
    for name in sorted(by_optimizer, key=lambda name: (known.index(name) if name in known else len(known), name)):
        flat = [flattened(group[0].config) for group in by_optimizer[name]]
        differing = [key for key in dict.fromkeys(k for f in flat for k in f) if len({repr(f.get(key)) for f in flat}) > 1]
        title = labelled[name]
        for number, (group, values) in enumerate(zip(by_optimizer[name], flat, strict=True)):
            what = ", ".join(f"{key} {values.get(key, 'unset')}" for key in differing if key != "seed")
            result.append(Variant(name, f"{title} ({what})" if what else title, style(name, number), tuple(group), metric))
    looks = distinct([variant.look for variant in result])
    return [dataclasses.replace(variant, look=look) for variant, look in zip(result, looks, strict=True)]


def labels(optimizers: Sequence[str]) -> dict[str, str]:
    """What optimizers are called: as their entries say, also those of one's own files; by their names if two are called alike.

    Example:
        >>> labels(["adamw", "gone.py:Lion", "lion"])
        {'adamw': 'AdamW', 'gone.py:Lion': 'gone.py:Lion', 'lion': 'Lion'}
        >>> labels(["torch.optim:Adam", "adam", "torch.optim:Adagrad"])
        {'torch.optim:Adam': 'torch.optim:Adam', 'adam': 'Adam', 'torch.optim:Adagrad': 'Adagrad'}
    """
    entries = {name: OPTIMIZERS.find(name) for name in optimizers}
    found = {name: name if entry is None else entry.label for name, entry in entries.items()}
    given = list(found.values())
    return {name: label if name in OPTIMIZERS or given.count(label) == 1 else name for name, label in found.items()}


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
