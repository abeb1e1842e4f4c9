"""Over several tasks: wins, mean ranks, and performance profiles of the time to target.

The profiles are Dolan and Moré's (2002), as AlgoPerf scores optimizers (Dahl et al. 2023): on each task the median time to the
target is divided by the fastest optimizer's; a profile is the share of tasks on which that ratio is at most τ. Its mean over
τ from 1 to 4 is the score. A target that half of
an optimizer's runs or more do not reach counts as never reached.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from arturo_lab.report.evidence import median_arrival
from arturo_lab.report.palette import Style, distinct
from arturo_lab.report.sections import Section, Variant, on_shared_seeds

Clock = Literal["seconds", "epochs"]
CLOCKS: tuple[Clock, ...] = ("seconds", "epochs")
LARGEST_RATIO = 4.0  # AlgoPerf's τ_max


@dataclass(frozen=True)
class Profile:
    """The ratios to the fastest, in rising order; one for each task, inf where the target was not reached."""

    ratios: tuple[float, ...]

    def share(self, tau: float) -> float:
        """Of the tasks, solved within ``tau`` times the fastest's time.

        Example:
            >>> Profile((1.0, 2.0, math.inf)).share(1.5), Profile((1.0, 2.0, math.inf)).share(2)
            (0.3333333333333333, 0.6666666666666666)
        """
        return sum(ratio <= tau for ratio in self.ratios) / len(self.ratios)

    @property
    def score(self) -> float:
        """The mean of the profile between 1 and 4: its area, where 1 is the fastest on every task.

        Example:
            >>> Profile((1.0, 1.0)).score, Profile((1.0, 2.5, math.inf)).score, Profile((9.0,)).score
            (1.0, 0.5, 0.0)
        """
        width = LARGEST_RATIO - 1
        return sum(max(0.0, LARGEST_RATIO - ratio) for ratio in self.ratios) / (width * len(self.ratios))


@dataclass(frozen=True)
class Standing:
    """One optimizer over the tasks that all of them ran."""

    label: str
    look: Style
    variants: tuple[Variant, ...]  # one for each section
    ranks: tuple[float, ...]
    wins: int
    profiles: Mapping[Clock, Profile]

    @property
    def mean_rank(self) -> float:
        return statistics.fmean(self.ranks)


@dataclass(frozen=True)
class Ranking:
    """Args:
    sections: the tasks.
    standings: best mean rank first.
    missing: labels of those that have no result on some task, and are not ranked.
    """

    sections: tuple[Section, ...]
    standings: tuple[Standing, ...]
    missing: tuple[str, ...]


def ranking(sections: Sequence[Section], target: float | None = None) -> Ranking | None:
    """None unless two optimizers have results on two tasks. On each task the seeds count that all who are ranked have."""
    chosen = tuple(section for section in sections if section.ranked)
    everywhere = [{variant.label: variant for variant in section.ranked} for section in chosen]
    labels = list(dict.fromkeys(variant.label for section in chosen for variant in section.variants if variant.over))
    common = [label for label in labels if all(label in variants for variants in everywhere)]
    if len(chosen) < 2 or len(common) < 2:
        return None
    everywhere = [{v.label: v for v in on_shared_seeds([variants[label] for label in common])} for variants in everywhere]
    ranks = {label: tuple(rank(variants[label], [variants[c] for c in common]) for variants in everywhere) for label in common}
    profiles = {clock: profiles_of([{c: v[c] for c in common} for v in everywhere], chosen, clock, target) for clock in CLOCKS}
    looks = distinct([everywhere[0][label].look for label in common])
    standings = [
        Standing(
            label,
            look,
            tuple(variants[label] for variants in everywhere),
            ranks[label],
            sum(leads(variants[label], variants.values()) for variants in everywhere),
            {clock: profiles[clock][label] for clock in CLOCKS},
        )
        for label, look in zip(common, looks, strict=True)
    ]
    ordered = tuple(sorted(standings, key=lambda standing: standing.mean_rank))
    return Ranking(chosen, ordered, tuple(label for label in labels if label not in common))


def rank(variant: Variant, among: Collection[Variant]) -> float:
    """1 for the best; equal ones share the mean of their places."""
    better = sum(other.standing < variant.standing for other in among)
    equal = sum(other.standing == variant.standing for other in among)
    return better + (equal + 1) / 2


def leads(variant: Variant, among: Collection[Variant]) -> bool:
    """Whether nobody is better."""
    return not any(other.standing < variant.standing for other in among)


def profiles_of(
    tasks: Sequence[Mapping[str, Variant]], sections: Sequence[Section], clock: Clock, target: float | None
) -> dict[str, Profile]:
    """By label. Each mapping holds the variants of one section."""
    ratios: dict[str, list[float]] = {label: [] for label in tasks[0]}
    for variants, section in zip(tasks, sections, strict=True):
        aim = section.target if target is None else target
        times = {label: time_to(variant, aim, clock) for label, variant in variants.items()}
        fastest = min(times.values())
        for label, time in times.items():
            ratios[label].append(math.inf if time == math.inf else time / fastest if fastest > 0 else 1.0)
    return {label: Profile(tuple(sorted(values))) for label, values in ratios.items()}


def time_to(variant: Variant, target: float | None, clock: Clock) -> float:
    """The median over the runs; inf unless more than half of them get there."""
    arrival = None if target is None else median_arrival(variant.arrivals(target, clock))
    return math.inf if arrival is None else arrival
