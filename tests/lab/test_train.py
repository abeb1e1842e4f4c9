"""One training: the same seed is the same run, and seeds are paired across optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from arturo_lab.data import loading
from arturo_lab.data.augment import PLAIN, Pixels
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS, OptimizerEntry
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks import models
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.epoch import EpochMetrics, StepMetrics
from arturo_lab.training.train import evaluate, refresh_norms, train

DIGITS = loading.load("digits")


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


EPOCHS = {"lion": 8, "lamb": 8}  # the steps of their packages' defaults are short


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(optimizer: str) -> None:
    first, *_, last = run(optimizer, epochs=EPOCHS.get(optimizer, 2))
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
    task = replace(TASKS["digits-mlp"], model=with_dropout, inputs=Pixels(crop="zero", flip=True))
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
    measured = evaluate(model, DIGITS.test_inputs, DIGITS.test_targets, TASKS["digits-mlp"])
    loss, accuracy = measured["loss"], measured["accuracy"]
    logits = model[0](DIGITS.test_inputs / 255)
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, DIGITS.test_targets).item(), rel=1e-6)
    assert accuracy == (logits.argmax(1) == DIGITS.test_targets).double().mean().item()


def test_leaves_random_state_and_threads_alone() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    run("sgd")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("subset", "batch_size"), [(33, 32), (65, 64), (1, 32), (8, 1)])
def test_a_lone_image_is_refused_where_norms_need_several(
    subset: int, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    normed = replace(TASKS["digits-mlp"], model=lambda: nn.Sequential(models.digits_mlp(), nn.BatchNorm1d(10)))
    monkeypatch.setitem(TASKS, "normed", normed)
    with pytest.raises(ConfigError, match=rf"^batch_size: {subset} examples in batches of {batch_size} leave one alone"):
        run("sgd", task="normed", subset=subset, batch_size=batch_size)
    assert run("sgd", task="digits-mlp", subset=subset, batch_size=batch_size)  # without norms it may be


def test_norms_see_the_weights_under_test() -> None:
    """Running statistics from other weights are replaced by those of the training images under these."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3))
    norm = model[2]
    norm.running_mean.fill_(1e3)
    images = DIGITS.train_inputs[:640]
    refresh_norms(model, PLAIN, images.split(16) * 5)
    expected = model[1](images.flatten(1) / 255)
    torch.testing.assert_close(norm.running_mean, expected.mean(0), rtol=0.2, atol=0.1)

    plain, state = models.fashion_mnist_cnn().train(), torch.get_rng_state()
    refresh_norms(plain, PLAIN, (torch.zeros(1, 1, 28, 28, dtype=torch.uint8),))
    assert torch.equal(torch.get_rng_state(), state)  # no batch norm: not even dropout is drawn


@pytest.mark.filterwarnings("ignore:Using backward")
def test_optimizer_is_told_the_mode_and_wrapped_around_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Told(SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            calls.append("step")

    @contextmanager
    def around(optimizer: Optimizer) -> Iterator[None]:
        calls.append("before")
        yield
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        calls.append("graph" if all(g.requires_grad for g in gradients) else "no graph")

    entry = OptimizerEntry(
        "told",
        "",
        lambda: Told,
        {"lr": 0.1},
        around_gradient=around,
        mode=lambda optimizer, training: calls.append("train" if training else "test"),
    )
    monkeypatch.setitem(OPTIMIZERS, "told", entry)
    run("told", subset=64, batch_size=32)
    assert calls == ["train", "before", "no graph", "step", "before", "no graph", "step", "test"]
    calls.clear()
    monkeypatch.setitem(OPTIMIZERS, "told", replace(entry, create_graph=True))
    run("told", subset=32)
    assert calls == ["train", "before", "graph", "step", "test"]


def test_steps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[StepMetrics] = []
    config = RunConfig.for_task("digits-mlp", "arturo", epochs=2, subset=70, batch_size=32)
    first, second = train(config, DIGITS, on_step=steps.append)
    assert [(s.step, s.epoch) for s in steps] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    sizes = (32, 32, 6)
    assert first.train_loss == pytest.approx(sum(n * s.loss for n, s in zip(sizes, steps[:3], strict=True)) / 70)
    assert second.eta == pytest.approx(sum(s.eta or 0.0 for s in steps[3:]) / 3)
    assert second.evaluations == pytest.approx(sum(s.evaluations or 0 for s in steps[3:]) / 3)


def test_threads_and_devices() -> None:
    counts: list[int] = []
    config = RunConfig.for_task("digits-mlp", "sgd", epochs=1, subset=32, threads=2)
    train(config, DIGITS, on_step=lambda step: counts.append(torch.get_num_threads()))
    assert counts == [2]
    with pytest.raises(ConfigError, match=r"^device: cuda:99 is not available here"):
        train(config.changed(device="cuda:99"), DIGITS)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_channels_last_is_another_layout_of_the_same_training(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    networks: list[nn.Module] = []
    build = TASKS["digits-cnn"].model
    task = replace(TASKS["digits-cnn"], model=lambda: networks.append(build()) or networks[-1])
    monkeypatch.setitem(TASKS, "digits-cnn", task)
    (plain,) = run(optimizer, task="digits-cnn", subset=128)
    (last,) = run(optimizer, task="digits-cnn", subset=128, channels_last=True)
    filters = [[p for p in network.parameters() if p.ndim == 4 and p.shape[1] > 1] for network in networks]
    assert filters[0] and all(p.is_contiguous() for p in filters[0])
    if optimizer != "ivon":  # its package puts tensors of its own in the parameters' place
        assert all(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in filters[1])
    if not OPTIMIZERS[optimizer].draws:  # draws fill memory in its order: other ones belong to each weight
        assert last.train_loss == pytest.approx(plain.train_loss, rel=1e-4)
