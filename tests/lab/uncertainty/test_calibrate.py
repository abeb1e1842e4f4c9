"""``arturo calibrate`` from the trainings to the page, on the digits: small, real, seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from arturo import Arturo
from arturo_lab import cli
from arturo_lab.data import loading
from arturo_lab.errors import ConfigError
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.run import open_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.train import train
from arturo_lab.uncertainty import methods
from arturo_lab.uncertainty.images import Images, Trained, Work, fitted
from arturo_lab.uncertainty.methods import METHODS

EPOCHS = 30
WORK = Work(6, 4, 40, (0.01, 1.0), (10.0, 1000.0), seed=0)
COMMAND = ["calibrate", "digits-mlp", "--methods", "point", "arturo-surrogate", "ensemble", "--epochs", "2", "--subset", "300"]


def thin_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def images() -> Images:
    digits = loading.load("digits")
    return Images.split(digits, 300, 100, 100, digits)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def trained(out: Path, monkeypatch: pytest.MonkeyPatch):
    """A network of a method, trained once for all tests."""
    monkeypatch.setitem(TASKS, "digits-mlp", replace(TASKS["digits-mlp"], model=thin_mlp))  # type: ignore[arg-type]

    def make(optimizer: str, count: int = 1) -> list[Trained]:
        configs = [RunConfig.for_task("digits-mlp", optimizer, seed, EPOCHS, subset=300) for seed in range(count)]
        for config in configs:
            with open_run(out, config) as run:
                if run.result is None:
                    train(config, loading.load("digits"), run=run)
        return [Trained.load(config, out) for config in configs]

    return make


def optimizer_of(method: str) -> str:
    return {"ours": "arturo-default", "theirs": "adamw"}.get(METHODS[method].optimizer, METHODS[method].optimizer)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_probabilities_that_repeat(method: str, trained, images: Images) -> None:
    """Rows sum to 1, better than guessing, twice the same; the networks are left as they were."""
    networks = trained(optimizer_of(method), METHODS[method].networks)
    before = [{k: v.clone() for k, v in one.model.state_dict().items()} for one in networks]
    predictor, chosen = METHODS[method].make(networks, images, WORK)
    p = predictor(images.test_images)
    torch.testing.assert_close(p.sum(1), torch.ones(100, dtype=torch.float64), rtol=0, atol=1e-5)
    assert (p.argmax(1) == images.test_labels).double().mean() > 0.25
    assert torch.equal(predictor(images.test_images), p)
    assert bool(chosen) == METHODS[method].tuned
    for one, values in zip(networks, before, strict=True):
        assert all(torch.equal(v, values[k]) for k, v in one.model.state_dict().items())
        assert not any(module.training for module in one.model.modules())


def test_methods_differ_as_they_should(trained, images: Images) -> None:
    """Dropout and draws spread probabilities; the ensemble is the mean of its networks."""
    five = trained("adamw", 5)
    point, _ = METHODS["point"].make(five[:1], images, WORK)
    dropout, _ = METHODS["dropout"].make(five[:1], images, WORK)
    assert not torch.allclose(point(images.test_images), dropout(images.test_images), atol=1e-3)
    ensemble, _ = METHODS["ensemble"].make(five, images, WORK)
    each = torch.stack([one.probabilities(images.test_images) for one in five])
    torch.testing.assert_close(ensemble(images.test_images), each.mean(0))
    assert each.var(0).max() > 1e-4


def test_a_loaded_training_is_where_it_ended(trained, images: Images) -> None:
    (one,) = trained("arturo-default")
    assert isinstance(one.optimizer, Arturo) and one.optimizer.state[next(one.model.parameters())]["step"] == EPOCHS * 10
    assert one.config.epochs == EPOCHS and not one.model.training


def test_ivon_draws_as_its_package_does(trained, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of our draws is that of the package's."""
    (one,) = trained("ivon")
    group, found = one.optimizer.param_groups[0], []
    monkeypatch.setattr(methods, "drawing", lambda one, posterior, work: found.append(posterior))
    METHODS["ivon"].make([one], images, WORK)
    ours = torch.cat([v.sqrt().flatten() for v in found[0].variance.values()])
    torch.testing.assert_close(ours, (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt())


def test_images_are_split_and_fitted() -> None:
    """Held-out images follow those trained on in the fixed order; nothing is in both."""
    digits = loading.load("digits")
    found = Images.split(digits, 200, 50, None, None)
    assert torch.equal(found.train_images, digits.subset(200).train_inputs)
    assert torch.equal(torch.cat([found.train_images, found.held_out_images]), digits.subset(250).train_inputs)
    assert found.elsewhere is None and len(found.test_labels) == 360
    assert fitted(digits.test_inputs[:3], (1, 28, 28)).shape == (3, 1, 28, 28)
    with pytest.raises(ConfigError, match="1 channels do not fit a network for 3"):
        fitted(digits.test_inputs, (3, 32, 32))


def test_the_command_goes_on_and_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page, JSON and figures; a second time nothing is computed and every byte is the same; a damaged file is said so."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("ARTURO_DATA", str(tmp_path))
    command = [*COMMAND, "--samples", "3", "--tuning-samples", "2", "--test-images", "60", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "arTuRO, filter's curvature" in out and max(map(len, out.splitlines())) <= 80 + len(str(tmp_path))
    names = [f"calibrate-digits-mlp.{kind}" for kind in ("md", "json", "png", "pdf")]
    written = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    numbers = json.loads(written["calibrate-digits-mlp.json"])
    assert [row["method"] for row in numbers["methods"]] == ["point", "arturo-surrogate", "ensemble"]
    assert [row["networks"] for row in numbers["methods"]] == [1, 1, 5] and [row["passes"] for row in numbers["methods"]] == [
        1,
        3,
        5,
    ]
    assert all(0 <= row["scores"]["ece"] <= 1 for row in numbers["methods"]) and str(tmp_path) not in numbers["command"]
    page = written["calibrate-digits-mlp.md"].decode()
    assert "| deep ensemble of 5 |" in page and "calibrate-digits-mlp.png" in page

    assert cli.main(command) == 0
    assert "6 of 6 runs" in capsys.readouterr().out
    for name in names[:2]:
        assert (tmp_path / "out" / name).read_bytes() == written[name]
    (damaged,) = (tmp_path / "out/digits-mlp/calibrate").glob("point-*.json")
    damaged.write_text("{}")
    assert cli.main(command) == 2
    assert "not what this version writes" in capsys.readouterr().err
