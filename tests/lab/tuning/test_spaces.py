"""The search spaces: they hold what the paper found, are equally large under `fair`, and give arguments that work."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers import tuned
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.share import Share
from arturo_lab.tuning.protocols import PROTOCOLS, Search
from arturo_lab.tuning.spaces import SPACES, Dimension, space

FOUND = {"sgd": tuned.SGD, "adam": tuned.ADAM, "adamw": tuned.ADAMW, "arturo": tuned.ARTURO}
ALL = [(protocol, optimizer) for protocol, spaces in SPACES.items() for optimizer in spaces]


def coordinates(values: dict) -> dict[str, float]:
    """The paper's values in the letters of the space."""
    found = {key: value for key, value in values.items() if key not in ("betas", "momentum")}
    if "betas" in values:
        found |= {"1-beta1": 1 - values["betas"][0], "1-beta2": 1 - values["betas"][1]}
    return found | ({"1-momentum": 1 - values["momentum"]} if "momentum" in values else {})


@pytest.mark.parametrize("optimizer", FOUND)
def test_paper_spaces_hold_what_the_paper_found(optimizer: str) -> None:
    for values in FOUND[optimizer].values():
        point = coordinates({name: x for name, x in values.items() if name != "initial_curvature"})  # a unit, not searched
        dimensions = space("paper", optimizer).dimensions
        assert {d.name for d in dimensions} == set(point)
        for d in dimensions:
            if point[d.name] >= d.low or not d.off_at_low:  # no decay at all is what the low end means
                assert 0.05 < d.share(point[d.name]) < 0.95, (d.name, point[d.name])
                assert d.edge(point[d.name]) is None


def test_fair_is_equal() -> None:
    spaces = SPACES["fair"]
    ours, peers = {"adaarturo", "adaarturo-diagonal", "arturo"}, {"soap", "schedulefree-adamw", "ivon", "adahessian", "lion"}
    assert set(spaces) >= {"sgd", "adam", "adamw", *ours, *peers, "muon", "lamb", "adabelief", "prodigy"}
    for position in range(3):
        lengths = []
        for found in spaces.values():
            assert len(found.dimensions) == 3
            d = found.dimensions[position]
            # The filter remembers sqrt(noise / drift) steps: two decades of drift are one of memory.
            lengths.append(math.log10(d.high / d.low) / (2 if d.name == "drift" else 1))
        assert max(lengths) - min(lengths) < 0.01


@pytest.mark.parametrize(("protocol", "optimizer"), ALL)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_every_corner_is_taken_by_the_optimizer(protocol: str, optimizer: str, share: float) -> None:
    found = space(protocol, optimizer)
    point = found.point((share,) * len(found.dimensions))
    config = RunConfig.for_task("fmnist-cnn", optimizer, overrides=found.settings(point))
    for name in ("lr", "weight_decay", "kl_bound", "drift"):
        if name in point:
            assert config.settings[name] == point[name]
    assert all(d.why for d in found.dimensions)


def test_fair_does_not_start_from_the_papers_values() -> None:
    found = space("fair", "arturo")
    settings = RunConfig.for_task("fmnist-cnn", "arturo", overrides=found.settings(found.point((0.5,) * 3))).settings
    fresh = RunConfig.for_task("digits-mlp", "arturo").settings
    assert {key for key in settings if settings[key] != fresh[key]} == {"lr", "drift", "weight_decay"}


def test_edges() -> None:
    lr = Dimension("lr", 1e-3, 1.0, "")
    assert lr.edge(0.03) is None and lr.edge(1e-3) is not None and lr.edge(0.9) is not None
    off = Dimension("weight_decay", 1e-6, 1e-2, "", off_at_low=True)
    assert off.edge(1e-6) is None and off.edge(9e-3) is not None
    linear = Dimension("x", -1.0, 3.0, "", log=False)
    assert linear.at(0.25) == 0.0 and linear.share(1.0) == 0.5 and linear.edge(1.0) is None


def test_paper_protocol_is_the_papers() -> None:
    paper = PROTOCOLS["paper"]
    assert (paper.trials, paper.folds, paper.seeds, paper.prune) == (50, 8, 3, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"optimizer": "arturo-ggn"},
            r"^optimizer: arturo-ggn has no search space under --protocol fair; sgd, adam, adamw",
        ),
        ({"optimizer": "adm"}, r"^optimizer: unknown name 'adm'"),
        ({"folds": 1}, r"^folds: must be an integer >= 2, got 1"),
        ({"seeds": 0}, r"^seeds: must be an integer >= 1, got 0"),
        ({"share": Share(1, 32, subset=5000)}, r"^subset: digits-mlp has 1437 training examples, got 5000"),
        ({"protocol": "unfair"}, r"^protocol: unknown name 'unfair'; did you mean fair"),
    ],
)
def test_bad_searches(change: dict, message: str) -> None:
    values = {
        "task": "digits-mlp",
        "optimizer": "sgd",
        "protocol": "fair",
        "folds": 2,
        "seeds": 1,
        "share": Share(1, 32),
    }
    with pytest.raises(ConfigError, match=message):
        Search(**{**values, **change})  # type: ignore[arg-type]


def test_options_of_the_machine_reach_the_trainings() -> None:
    plain = Search("digits-mlp", "sgd", "fair", 2, 1, Share(1, 32))
    other = replace(plain, machine=Machine(amp="bf16", channels_last=True, threads=2))
    (config,) = other.configs({}, fold=1)
    assert (config.machine.amp, config.machine.channels_last, config.machine.compile, config.machine.threads) == (
        "bf16",
        True,
        False,
        2,
    )
    assert not {"amp", "compile", "channels_last"} & plain.identity().keys()  # an option that is off makes no other study
    assert other.identity()["amp"] == "bf16" and "compile" not in other.identity()


def test_studies_share_folds_and_no_seed() -> None:
    def runs(study: int) -> set[tuple[str | None, int]]:
        search = Search("digits-mlp", "sgd", "fair", 3, 2, Share(1, 32), study=study)
        return {(config.share.fold, config.seed) for fold in (1, 2, 3) for config in search.configs({}, fold)}

    assert len(runs(0)) == 6 and runs(0).isdisjoint(runs(1))
    assert {fold for fold, _ in runs(0)} == {fold for fold, _ in runs(1)} == {"1/3", "2/3", "3/3"}
