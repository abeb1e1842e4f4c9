"""One training: the same seed is the same run, and seeds are paired across optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from arturo.lab import data, models
from arturo.lab.augment import Pixels
from arturo.lab.config import RunConfig
from arturo.lab.epoch import EpochMetrics
from arturo.lab.optimizers import OPTIMIZERS, OptimizerEntry
from arturo.lab.tasks import TASKS
from arturo.lab.train import evaluate, train

DIGITS = data.load("digits")


def run(optimizer: str, seed: int = 0, epochs: int = 1, task: str = "digits-mlp", **options) -> list[EpochMetrics]:
    """The metrics without the times, the one thing that may differ."""
    metrics = train(RunConfig.for_task(task, optimizer, seed, epochs, **options), DIGITS)
    times = {f.name: 0.0 for f in fields(EpochMetrics) if "second" in f.name}
    return [replace(m, **times) for m in metrics]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_seed_same_metrics(optimizer: str) -> None:
    first, second, other = run(optimizer, epochs=2), run(optimizer, epochs=2), run(optimizer, seed=1, epochs=2)
    assert first == second
    assert first != other


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(optimizer: str) -> None:
    first, last = run(optimizer, epochs=2)
    assert last.train_loss < first.train_loss < math.log(10) < 2.31
    assert last.test_accuracy > 0.5  # chance is 0.1


def test_paired_seeds_start_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: dict[str, list[Tensor]] = {}
    for name, entry in list(OPTIMIZERS.items()):

        def spy(params: Iterable[nn.Parameter], *, name: str = name, load=entry.load, **settings: object) -> Optimizer:
            params = list(params)
            starts[name] = [p.detach().clone() for p in params]
            return load()(params, **settings)

        config = RunConfig.for_task("digits-mlp", name, seed=5, epochs=1)
        monkeypatch.setitem(OPTIMIZERS, name, replace(entry, load=lambda spy=spy: spy))
        train(config, DIGITS.subset(32))

    first = starts.pop("sgd")
    assert len(starts) == len(OPTIMIZERS) - 1
    for start in starts.values():
        assert all(torch.equal(p, q) for p, q in zip(first, start, strict=True))


def test_paired_seeds_see_the_same_batches_crops_and_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step the loss of an epoch depends on the start, the batch order, the crops and the dropout masks alone."""

    def with_dropout() -> nn.Module:
        return nn.Sequential(models.digits_mlp(), nn.Dropout(0.5))

    frozen = {"a": OptimizerEntry("a", "", lambda: SGD, {"lr": 0.0}), "b": OptimizerEntry("b", "", lambda: AdamW, {"lr": 0.0})}
    for name, entry in frozen.items():
        monkeypatch.setitem(OPTIMIZERS, name, entry)
    task = replace(TASKS["digits-mlp"], model=with_dropout, pixels=Pixels(crop="zero", flip=True))
    monkeypatch.setitem(TASKS, "with-dropout", task)
    assert run("a", 3, 2, "with-dropout") == run("b", 3, 2, "with-dropout")
    assert run("a", 3, 1, "with-dropout") != run("a", 4, 1, "with-dropout")


def test_trust_region_is_reported_for_arturo_only() -> None:
    (ours,), (other,) = run("arturo"), run("adamw")
    assert ours.kl_over_bound is not None and 0 < ours.kl_over_bound <= 1.001
    assert ours.eta is not None and ours.eta >= 0
    assert other.kl_over_bound is None and other.eta is None


def test_schedule_falls_from_full_to_nearly_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    class Watched(SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            seen.append(self.param_groups[0]["lr"])

    monkeypatch.setitem(OPTIMIZERS, "watched", OptimizerEntry("watched", "", lambda: Watched, {"lr": 0.4}))
    run("watched", epochs=2)
    assert len(seen) == 2 * math.ceil(1437 / 32)
    assert seen[0] == 0.4 and seen[45] == pytest.approx(0.2) and 0 < seen[-1] < 1e-3
    assert seen == sorted(seen, reverse=True)


def test_evaluate_is_the_whole_test_set_in_eval_mode() -> None:
    model = nn.Sequential(models.digits_mlp(), nn.Dropout(0.9))
    loss, accuracy = evaluate(model, DIGITS.test_images, DIGITS.test_labels)
    logits = model[0](DIGITS.test_images / 255)
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, DIGITS.test_labels).item(), rel=1e-6)
    assert accuracy == (logits.argmax(1) == DIGITS.test_labels).double().mean().item()


def test_leaves_random_state_and_threads_alone() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    run("sgd")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
