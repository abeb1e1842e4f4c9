"""Tasks of every kind: each trains, resumes bit for bit, holds out a fold, and says what its metric is."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arturo_lab.data import docstrings, loading
from arturo_lab.data.docstrings import CONTEXT, NEGATIVES, PASSES, WORDS, Windows, WordPairs
from arturo_lab.data.examples import Examples
from arturo_lab.data.inputs import WithNegatives
from arturo_lab.data.sources import DATA, DataSet
from arturo_lab.errors import ConfigError, DataError
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import read_run
from arturo_lab.runs.run import open_run
from arturo_lab.tasks import networks
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.metrics import LOSS, Metric, evidence, negative_sampling, reconstruction
from arturo_lab.tasks.task import Task
from arturo_lab.training.order import Order
from arturo_lab.training.train import evaluate, train

CORPUS = docstrings.corpus  # the tests have a smaller one
KINDS = [name for name, task in TASKS.items() if task.epoch_steps is not None]
TEXT = " ".join(f"the {word} of a {other} is here" for word in ("cat", "dog", "owl") for other in ("tree", "house", "sky")) * 9


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of a few sentences, and noise of the right shape for the images."""
    text = torch.tensor(list(TEXT.encode()), dtype=torch.uint8)
    monkeypatch.setattr(docstrings, "corpus", lambda: (text, text[:900]))
    loading._embedded.cache_clear()
    rng = np.random.default_rng(0)

    def noise(channels: int, side: int) -> Examples:
        images = torch.from_numpy(rng.integers(0, 256, (120, channels, side, side), dtype=np.uint8))
        labels = torch.arange(120) % 10
        return Examples("noise", images[:90], labels[:90], images[90:], labels[90:], 10)

    for name, shape in (("fashion-mnist-12000", (1, 28)), ("cifar10-10000", (3, 32)), ("cifar100-10000", (3, 32))):
        monkeypatch.setitem(DATA, name, DataSet(name, lambda place, shape=shape: noise(*shape), 10, examples=90))


def short(name: str, **options: object) -> RunConfig:
    return RunConfig.for_task(name, "adamw", epochs=2, batch_size=min(TASKS[name].batch_size, 16), **options)  # type: ignore[arg-type]


@pytest.fixture
def three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KINDS:
        monkeypatch.setitem(TASKS, name, replace(TASKS[name], epoch_steps=3))


def finished(config: RunConfig, out: Path, data: Examples) -> tuple[str, list[dict[str, object]]]:
    with open_run(out, config) as run:
        train(config, data, run=run)
        rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        timeless = [{key: value for key, value in row.items() if "second" not in key} for row in rows]
        return (run.path / "steps.jsonl").read_text(), timeless


@pytest.mark.parametrize("name", KINDS)
def test_trains_resumes_and_folds(name: str, three_steps: None, tmp_path: Path) -> None:
    config, data = short(name), loading.load(TASKS[name].data)
    whole = finished(config, tmp_path / "whole", data)

    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen == 4  # in the middle of the second epoch, three steps and a test behind it

    with open_run(tmp_path / "parts", config) as run, pytest.raises(KeyboardInterrupt):
        train(config, data, run=run, stop=stop)
    assert finished(config, tmp_path / "parts", data) == whole

    record = read_run(tmp_path / "whole" / name / config.name)
    metric = TASKS[name].metric
    assert record.result["metric"] == {**metric.described(), "value": record.rows[-1][metric.key]}
    assert ("test_accuracy" in record.result) == TASKS[name].classifies

    held_out = train(short(name, fold="2/3"), data)
    assert len(held_out) == 2 and math.isfinite(held_out[-1].test_loss)
    assert held_out[-1].test_loss != whole[1][-1]["test_loss"] or name in ("rosenbrock",)
    few = short(name, subset=48)
    assert few.key != config.key and math.isfinite(train(few, data)[-1].test_loss)


@pytest.mark.parametrize("name", ["byte-transformer", "diabetes-mlp", "fmnist-vae", "rosenbrock"])
def test_loss_falls(name: str) -> None:
    task = TASKS[name]
    history = train(short(name), loading.load(task.data))
    assert history[-1].train_loss < history[0].train_loss and history[-1].test_accuracy is None


def test_order_goes_through_the_data_in_whole_batches() -> None:
    """Bit for bit what an endless loop over shuffled passes gives, cut into epochs anywhere."""
    task = replace(TASKS["fmnist-vae"], epoch_steps=5)
    order = Order(task, examples=37, batch_size=8, generator=torch.Generator().manual_seed(3))
    found = [batch for _ in range(4) for batch in order.epoch().split(8)]
    generator = torch.Generator().manual_seed(3)
    passes = [torch.randperm(37, generator=generator) for _ in range(5)]
    expected = [batch for each in passes for batch in each.split(8) if len(batch) == 8]
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_order_with_replacement_is_a_draw_for_every_step() -> None:
    task = replace(TASKS["byte-gru"], epoch_steps=4)
    order = Order(task, examples=1000, batch_size=8, generator=torch.Generator().manual_seed(3))
    found = torch.cat([order.epoch(), order.epoch()])
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(found, torch.cat([torch.randint(1000, (8, 1), generator=generator) for _ in range(8)]).flatten())


def test_docstring_corpus_splits_by_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"m{number}.py").write_text(f'"""Module {number}."""\ndef f():\n    """Shared."""\n')
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "hidden.py").write_text('"""Hidden."""')
    monkeypatch.setattr(docstrings.sysconfig, "get_path", lambda name: str(tmp_path))
    train_text, test_text = (bytes(side.tolist()).decode() for side in CORPUS.__wrapped__())
    for number in range(40):
        assert (f"Module {number}." in train_text) != (f"Module {number}." in test_text)
    assert (train_text + test_text).count("Shared.") == 1 and "Hidden" not in train_text + test_text


def test_windows_of_a_text() -> None:
    data = loading.load("docstrings")
    assert isinstance(data, Windows) and len(data) == len(TEXT) - CONTEXT
    assert bytes(data.text.tolist()).decode() == TEXT
    assert bytes(data.train_inputs[7].tolist()).decode() == TEXT[7 : 7 + CONTEXT]
    assert bytes(data.train_targets[7].tolist()).decode() == TEXT[8 : 8 + CONTEXT]
    assert torch.equal(data.test_inputs.flatten()[1:], data.test_targets.flatten()[:-1])
    assert len(data.subset(100)) == 100 and torch.equal(data.subset(100).train_inputs, data.train_inputs[:100])


@pytest.mark.parametrize("parts", [2, 5])
def test_folds_of_a_text_are_stretches_that_share_nothing(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = torch.randint(256, (1000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = Windows.of("noise", text, text[:200])
    held_out = []
    for k in range(1, parts + 1):
        fold = data.fold(f"{k}/{parts}")
        held_out.append(fold.test_inputs.flatten())
        assert len(fold.text) + len(text) // parts == len(text)
        seen = {tuple(window.tolist()) for window in fold.train_inputs}
        assert not any(tuple(window.tolist()) in seen for window in fold.test_inputs)
    assert torch.equal(held_out[0], text[: len(held_out[0])])


def test_word_pairs_are_neighbours_and_negatives_are_drawn_by_frequency() -> None:
    data = loading.load("docstring-words")
    assert isinstance(data, WordPairs)
    words = TEXT.split()
    index = {
        word: i for i, word in enumerate(dict.fromkeys(sorted(set(words), key=lambda w: (-words.count(w), words.index(w)))))
    }
    assert len(data) == PASSES * (len(words) - PASSES)
    assert data.train_inputs[0].tolist() == [index[words[3]], index[words[0]]]
    assert data.test_inputs.shape[1] == 2 + NEGATIVES and data.test_targets.unique().tolist() == [0]

    inputs = WithNegatives()
    batch = inputs.for_training(
        inputs.prepared(data.train_inputs), torch.zeros(3000, dtype=torch.long), torch.Generator().manual_seed(0)
    )
    drawn = torch.bincount(batch[:, 2:].flatten(), minlength=WORDS).double() / batch[:, 2:].numel()
    counts = torch.bincount(data.train_inputs[:, 0], minlength=WORDS).double().pow(0.75)
    torch.testing.assert_close(drawn, counts / counts.sum(), rtol=0, atol=0.01)

    fold = data.fold("1/3")
    assert abs(len(fold) - len(data) * 2 / 3) <= 2 * PASSES and len(data.subset(60)) == 60


def test_losses_by_hand() -> None:
    logits, pixels = torch.tensor([[0.0, 2.0]]), torch.tensor([[[0.0, 1.0]]])
    by_hand = -math.log(0.5) - math.log(torch.sigmoid(torch.tensor(2.0)).item())
    assert reconstruction(logits, pixels).item() == pytest.approx(by_hand)
    mean, log_variance = torch.tensor([[1.0]]), torch.tensor([[0.0]])
    assert evidence((logits, mean, log_variance), pixels).item() == pytest.approx(by_hand + 0.5)
    pair = negative_sampling(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item()
    assert pair == pytest.approx(-math.log(torch.sigmoid(torch.tensor(2.0)).item()) - math.log(0.5))


def test_functions() -> None:
    assert networks.Rosenbrock()(torch.zeros(3, 1)).tolist() == pytest.approx([24.2] * 3)
    quadratic = networks.NoisyQuadratic(width=2, condition=10.0)
    assert quadratic(torch.zeros(1, 2)).item() == pytest.approx(0.5 * 1.1)
    assert quadratic(torch.ones(1, 2)).item() == 0


def test_causal_transformer() -> None:
    model = networks.ByteTransformer(context=16, layers=2, d_model=32, heads=4)
    tokens = torch.randint(256, (2, 16))
    logits = model(tokens)
    tokens[:, 9] = (tokens[:, 9] + 1) % 256
    assert logits.shape == (2, 16, 256) and torch.equal(logits[:, :9], model(tokens)[:, :9])


def test_metrics_are_means_over_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rmse = Metric("rmse", "lower", "mm", lambda output, y: (output.squeeze(-1) - y).square(), math.sqrt)
    data = loading.load("diabetes")
    task = replace(TASKS["diabetes-mlp"], metrics=(rmse, LOSS))
    torch.manual_seed(0)
    model = task.model()
    measured = evaluate(model, data.test_inputs, data.test_targets, task)
    error = F.mse_loss(model(data.test_inputs).squeeze(-1), data.test_targets).item()
    assert measured == {"loss": pytest.approx(error), "rmse": pytest.approx(error**0.5)}

    monkeypatch.setitem(TASKS, "measured", task)
    history = train(short("measured"), data)
    assert history[-1].value("rmse") == pytest.approx(history[-1].test_loss ** 0.5)


def test_a_task_must_make_sense() -> None:
    with pytest.raises(ConfigError, match=r"^task: T must have a metric"):
        Task("T", "digits", nn.Identity, epochs=1, metrics=())
    with pytest.raises(ConfigError, match=r"^task: T draws with replacement"):
        Task("T", "digits", nn.Identity, epochs=1, replacement=True)
    with pytest.raises(ConfigError, match=r"^batch_size: 90 examples make no batch of 128"):
        train(RunConfig.for_task("fmnist-vae", "adamw"), loading.load("fashion-mnist-12000"))


# Schedules as options of a run


def test_schedule_and_warmup_of_a_run() -> None:
    steps: list[float] = []

    def lrs(**options: object) -> list[float]:
        steps.clear()
        config = RunConfig.for_task("digits-mlp", "adamw", epochs=2, subset=320, **options)  # type: ignore[arg-type]
        train(config, loading.load("digits"), on_step=lambda metrics: steps.append(metrics.lr))
        return list(steps)

    assert lrs(schedule="constant") == [1e-3] * 20
    assert lrs(schedule="constant", warmup=0.1)[:4] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3])
    cosine = lrs(schedule="cosine")
    assert cosine == lrs() and cosine[10] == pytest.approx(5e-4)
    assert lrs(schedule="milestones")[-1] == pytest.approx(1e-5)


def test_whose_schedule_it_is() -> None:
    warm = RunConfig.for_task("digits-mlp", "adamw-warmup")
    assert warm.lr_warmup == 0.1 and RunConfig.for_task("digits-mlp", "adamw-warmup", warmup=0.0).lr_warmup == 0
    assert RunConfig.for_task("digits-mlp", "adamw-warmup", warmup=0.0).key != warm.key
    free = RunConfig.for_task("digits-mlp", "schedulefree-adamw", schedule="cosine")
    assert free.lr_schedule(0.9, 0.1) == 1  # it is defined without one
    with pytest.raises(ConfigError, match=r"^schedule: unknown name 'cosinus'; did you mean cosine"):
        RunConfig.for_task("digits-mlp", "adamw", schedule="cosinus")
    for warmup in (-0.1, 1.5, "much"):
        with pytest.raises(ConfigError, match=r"^warmup: must be "):
            RunConfig.for_task("digits-mlp", "adamw", warmup=warmup)


# Data that is not what its name says


def test_noise_does_not_pass_for_a_published_data_set(nowhere: Path, tmp_path: Path) -> None:
    from tests.lab.conftest import SmallCifar, SmallFashionMnist

    SmallFashionMnist().write(nowhere / "given")
    with pytest.raises(DataError, match=r"given: not Fashion-MNIST: the content has the digest [0-9a-f]{16}, "):
        loading.load("fashion-mnist", nowhere / "given")
    SmallCifar(10).write(nowhere / "given")
    with pytest.raises(DataError, match="not CIFAR-10: "):
        loading.load("cifar10", nowhere / "given")


def test_digest_sees_every_number() -> None:
    digits = loading.load("digits")
    assert digits.digest == loading.load("digits").digest
    changed = digits.train_inputs.clone()
    changed[-1, 0, 7, 7] += 1
    assert replace(digits, train_inputs=changed).digest != digits.digest
    assert replace(digits, test_targets=digits.test_targets.flip(0)).digest != digits.digest
