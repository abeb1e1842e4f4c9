"""What a comparison trains, and what is no comparison."""

from __future__ import annotations

import pytest

from arturo_lab.errors import ConfigError
from arturo_lab.runs.plan import parse_overrides, parse_seeds, plan


def test_seeds_are_paired_and_whole_pairs_come_first() -> None:
    configs = plan(["digits-mlp", "digits-cnn"], ["sgd", "arturo"], [4, 1], epochs=3, subset=64, threads=1)
    assert [(c.task, c.seed, c.optimizer) for c in configs[:4]] == [
        ("digits-mlp", 4, "sgd"),
        ("digits-mlp", 4, "arturo"),
        ("digits-mlp", 1, "sgd"),
        ("digits-mlp", 1, "arturo"),
    ]
    assert {(c.epochs, c.share.subset, c.machine.threads, c.batch_size) for c in configs} == {(3, 64, 1, 32)} and len(
        configs
    ) == 8


def test_overrides_reach_their_optimizer_alone() -> None:
    overrides = parse_overrides(["sgd.lr=0.5", "arturo-paper.kl_bound=0.01", "sgd.momentum=0"], ["sgd", "arturo-paper", "adam"])
    configs = {c.optimizer: c for c in plan(["digits-mlp"], ["sgd", "arturo-paper", "adam"], [0], overrides=overrides)}
    assert (configs["sgd"].settings["lr"], configs["sgd"].settings["momentum"]) == (0.5, 0)
    assert configs["arturo-paper"].settings["kl_bound"] == 0.01 and configs["adam"].settings["lr"] == 0.001


@pytest.mark.parametrize("text", ["", ",", "-1", "1.5", "0,,1", "a", "0-3", "1;2", "²"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^seeds: must be a count such as 3 or seeds such as 0,5,8, got"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("tasks", "optimizers", "seeds", "message"),
    [
        (["digits-mlp", "digits-mlp"], ["sgd"], [0], r"^task: digits-mlp is named twice in digits-mlp, digits-mlp"),
        (["digits-mlp"], ["sgd", "adam", "sgd"], [0], r"^optimizers: sgd is named twice"),
        (["digits-mlp"], ["sgd"], [3, 3], r"^seeds: 3 is named twice in 3, 3"),
        (["digits-mlp"], ["sgd"], [-1], r"^seed: must be an integer >= 0, got -1"),
        (["digits-mpl"], ["sgd"], [0], r"^task: unknown name 'digits-mpl'; did you mean digits-mlp"),
    ],
)
def test_what_is_no_comparison(tasks: list[str], optimizers: list[str], seeds: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(tasks, optimizers, seeds)
