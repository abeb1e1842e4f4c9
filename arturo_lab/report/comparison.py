"""Who differs from whom: paired differences between the variants of a section, and how certain they are.

What is compared is fixed before the numbers are seen: every variant with one that was named (``--against``, by default AdamW),
or all pairs. A diverged run counts: its pair is lost, and because it has no number the sign test takes the place of the t-test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from arturo_lab.errors import ConfigError
from arturo_lab.report.evidence import LEVEL, Estimate, holm, paired_t_test, seeds_for, sign_test, smallest_p
from arturo_lab.report.sections import Section, Variant, labels
from arturo_lab.report.wording import count

AGAINST = "adamw"  # unless the user names another
ALL_PAIRS = "all"


@dataclass(frozen=True)
class Difference:
    """Args:
    one, other: what is compared; a positive difference says that ``one`` is better, whichever direction that is.
    pairs: seeds on which both are over.
    won, lost: pairs in which ``one`` is ahead and behind; a diverged run is behind one that finished.
    estimate: of the difference in the metric; None without pairs, and when a run of a pair diverged.
    p: not below :func:`smallest_p`, then with Holm's correction over the comparisons made; None with so few pairs that it
        could not be significant.
    """

    one: Variant
    other: Variant
    pairs: int
    won: int
    lost: int
    estimate: Estimate | None
    p: float | None

    @property
    def diverged(self) -> bool:
        """Whether a diverged run took part, so that there are wins and losses instead of a mean."""
        return self.pairs > 0 and self.estimate is None


@dataclass(frozen=True)
class Comparison:
    """The differences of a section. ``reference`` is None for all pairs."""

    reference: Variant | None
    differences: tuple[Difference, ...]

    def of(self, variant: Variant) -> Difference | None:
        """Of a variant against the reference."""
        return next((d for d in self.differences if d.one is variant), None) if self.reference is not None else None

    @property
    def tested(self) -> int:
        """For how many there is a p."""
        return sum(difference.p is not None for difference in self.differences)

    def notes(self) -> list[str]:
        """How the p-values came about, and what these seeds cannot say."""
        if not self.differences:
            return []
        pairs, made = max(difference.pairs for difference in self.differences), len(self.differences)
        what = "all pairs" if self.reference is None else f"all comparisons with {self.reference.label} on the task"
        notes = ["Differences are paired by seed (plus is better), ± half of their 95 % t-interval."]
        if not self.tested:
            few = f"{count(pairs, 'shared seed')} cannot carry a p for {count(made, 'comparison')}"
            notes.append(f"{few}; {fewest_pairs(made)} could.")
        else:
            least = f"what {count(pairs, 'seed')} cannot carry, below {smallest_p(pairs):.2g}, counts as that"
            notes.append(f"p: paired t-test ({least}), Holm's correction for {what}.")
        if any(difference.diverged for difference in self.differences):
            notes.append(
                "A diverged run loses its pair; where one did, p comes from an exact sign test and there is no interval."
            )
        return notes


def compare(section: Section, against: str | None = None) -> Comparison:
    """Every variant with ``against``, an optimizer's name or a variant's label; all pairs with ``"all"``.

    None stands for AdamW. A section that does not have it, or has several variants of it, compares all pairs.
    """
    reference = find_reference(section, AGAINST if against is None else against)
    variants = section.variants
    if reference is not None:
        chosen = [(variant, reference) for variant in variants if variant is not reference]
    else:
        chosen = [(one, other) for i, one in enumerate(variants) for other in variants[i + 1 :]]
    raw = [paired(one, other) for one, other in chosen]
    tested = [i for i, (difference, _) in enumerate(raw) if difference.pairs >= fewest_pairs(len(raw))]
    adjusted = dict(zip(tested, holm([max(raw[i][1], smallest_p(raw[i][0].pairs)) for i in tested]), strict=True))
    return Comparison(reference, tuple(replace(difference, p=adjusted.get(i)) for i, (difference, _) in enumerate(raw)))


def fewest_pairs(comparisons: int) -> int:
    """From how many on a p could be significant, corrected for so many comparisons."""
    return seeds_for((1 - LEVEL) / comparisons)


def find_reference(section: Section, against: str) -> Variant | None:
    """The one variant of that name; None if there is none or several."""
    if against == ALL_PAIRS:
        return None
    named = [v for v in section.variants if v.label == against] or [v for v in section.variants if v.optimizer == against]
    return named[0] if len(named) == 1 else None


def paired(one: Variant, other: Variant) -> tuple[Difference, float]:
    """Over the seeds on which both are over, and the p of this comparison alone (1 without a pair)."""
    seeds = sorted(one.over & other.over)
    mine, theirs = one.values, other.values
    both = [seed for seed in seeds if seed in mine and seed in theirs]
    differences = [one.metric.ahead(mine[seed], theirs[seed]) for seed in both]
    won = sum(d > 0 for d in differences) + sum(seed in mine and seed not in theirs for seed in seeds)
    lost = sum(d < 0 for d in differences) + sum(seed in theirs and seed not in mine for seed in seeds)
    if len(both) < len(seeds):
        return Difference(one, other, len(seeds), won, lost, None, None), sign_test(won, lost)
    estimate = Estimate.of(differences) if differences else None
    p = paired_t_test(differences) if len(differences) > 1 else 1.0
    return Difference(one, other, len(seeds), won, lost, estimate, None), p


def missing_reference(sections: Sequence[Section], against: str | None) -> bool:
    """Whether the user named one that no section has."""
    if against is None or against == ALL_PAIRS:
        return False
    return not any(against in (v.label, v.optimizer) for section in sections for v in section.variants)


def check_reference(against: str | None, optimizers: Sequence[str]) -> None:
    """Whether the user named one of those that are about to be trained: said before hours of training.

    Example:
        >>> check_reference("sgd", ["sgd", "adam"]), check_reference("Adam", ["sgd", "adam"]), check_reference(None, ["sgd"])
        (None, None, None)
        >>> check_reference("adamw", ["sgd", "adam"])
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: against: no runs of 'adamw'; use one of adam, sgd, or all for all pairs
    """
    if against not in (None, ALL_PAIRS, *optimizers, *labels(optimizers).values()):
        raise no_runs_of(against, optimizers)


def no_runs_of(against: str | None, optimizers: Iterable[str]) -> ConfigError:
    known = ", ".join(sorted(set(optimizers)))
    return ConfigError(f"against: no runs of {against!r}; use one of {known}, or {ALL_PAIRS} for all pairs")
