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
from arturo_lab.uncertainty.calibrate import Outcome, configs_of
from arturo_lab.uncertainty.document import scores_table
from arturo_lab.uncertainty.images import Images, Trained, Work, fitted
from arturo_lab.uncertainty.methods import METHODS, fit_temperature, scaled
from arturo_lab.uncertainty.scores import Bin, Scores

EPOCHS = 30
WORK = Work(6, 4, 40, (0.01, 1.0), (10.0, 1000.0), seed=0)
COMMAND = [
    "calibrate",
    "digits-mlp",
    "--methods",
    "point",
    "arturo-surrogate",
    "ensemble",
    "--epochs",
    "2",
    "--subset",
    "300",
    "--seeds",
    "2",
]


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
    every = ["point", "arturo-surrogate", "ensemble"]
    assert [(row["method"], row["seed"]) for row in numbers["methods"]] == [(name, seed) for seed in (0, 1) for name in every]
    assert [row["method"] for row in numbers["rows"]] == every and [row["seeds"] for row in numbers["rows"]] == [2, 2, 2]
    assert [row["networks"] for row in numbers["rows"]] == [1, 1, 5] and [row["passes"] for row in numbers["rows"]] == [1, 3, 5]
    for row in numbers["rows"]:
        values = [one["scores"]["nll"] for one in numbers["methods"] if one["method"] == row["method"]]
        assert row["nll"] == pytest.approx(sum(values) / 2) and row["nll_by_seed"] == pytest.approx(values)
        assert row["nll_half_width"] == pytest.approx(12.7062 * abs(values[0] - values[1]) / 2, rel=1e-4)
    assert all(0 <= row["scores"]["ece"] <= 1 for row in numbers["methods"]) and str(tmp_path) not in numbers["command"]
    page = written["calibrate-digits-mlp.md"].decode()
    assert "| deep ensemble of 5 |" in page and "calibrate-digits-mlp.png" in page
    assert "Guessing every class alike would have 10 % accuracy" in page and "over 2 seeds" in page

    assert cli.main(command) == 0
    assert "12 of 12 runs" in capsys.readouterr().out
    for name in names[:2]:
        assert (tmp_path / "out" / name).read_bytes() == written[name]
    damaged, _ = sorted((tmp_path / "out/digits-mlp/calibrate").glob("point-*.json"))
    damaged.write_text("{}")
    assert cli.main(command) == 2
    assert "not what this version writes" in capsys.readouterr().err


# --- the table


def outcome(method: str, seed: int, accuracy: float, nll: float, ece: float) -> Outcome:
    return Outcome(method, seed, Scores(accuracy, nll, ece, 0.5, None, (Bin(10, 0.5, accuracy),)), {}, 1, 1, 0.0, 0.0)


def test_who_guesses_is_never_the_best() -> None:
    """A method at chance level has no calibration error to speak of."""
    outcomes = [
        outcome(method, seed, accuracy + 0.01 * seed, nll, ece)
        for seed in (0, 1, 2)
        for method, accuracy, nll, ece in (
            ("point", 0.90, 0.5, 0.05),
            ("laplace", 0.89, 0.4, 0.03),
            ("dropout", 0.10, 2.3, 0.0),
        )
    ]
    table = scores_table("digits-mlp", outcomes, {"laplace": 1})
    best = {
        column.field: [row[0].fields["method"] for row in table.rows if row[i].best] for i, column in enumerate(table.columns)
    }
    assert (best["accuracy"], best["nll"], best["ece"], best["ood_auroc"]) == (["point"], ["laplace"], ["laplace"], [])
    assert table.rows[0][1].text == "91.00 ± 2.48" and table.rows[1][0].detail == "1 diverged"


def test_temperature_scaling_mends_what_is_too_sure() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    for true in (0.25, 1.0, 3.0):  # the network's logits are the true ones times this
        probabilities = (true * logits).softmax(1)
        fitted, at_edge = fit_temperature(probabilities, labels)
        assert fitted == pytest.approx(true, rel=0.06) and not at_edge
        assert torch.equal(scaled(probabilities, fitted).argmax(1), probabilities.argmax(1))
    flat = torch.full((100, 5), 0.2, dtype=torch.float64)
    flat[:, 0] += 1e-4
    assert fit_temperature(flat, torch.zeros(100, dtype=torch.long)) == (pytest.approx(0.05, rel=1e-3), True)


def test_ensembles_of_different_seeds_share_no_network() -> None:
    made = [configs_of("ensemble", seed, {"theirs": "adamw"}, lambda name, seed: (name, seed)) for seed in range(3)]  # type: ignore[arg-type, return-value]
    members = [member for ensemble in made for member in ensemble]
    assert len(members) == len(set(members)) == 15 and made[2][0] == ("adamw", 2)  # the first is the point estimate's


def test_seeds_that_would_collide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["calibrate", "digits-mlp", "--seeds", "1000,", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("arturo: seeds: must be below 1000")
