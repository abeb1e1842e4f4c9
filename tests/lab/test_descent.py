"""Descents: what is recorded of a step is what the optimizer did, and the settings are the searched ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from arturo import Arturo
from arturo_lab.registry import ConfigError
from arturo_lab.show.descent import BUILD, SETTINGS, STEPS, Descent, descend
from arturo_lab.show.landscapes import LANDSCAPES
from arturo_lab.tasks.schedules import cosine

GRID = Path(__file__).resolve().parents[2] / "results" / "show" / "grid.json"


@pytest.fixture(scope="module", params=LANDSCAPES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def way(name: str) -> Descent:
    return descend(LANDSCAPES[name], "arturo", SETTINGS[name]["arturo"], steps=60, seed=3)


def test_regions_chain_the_points(way: Descent) -> None:
    assert len(way.regions) == 60 and way.points.shape == (61, 2)
    for t, region in enumerate(way.regions):
        np.testing.assert_array_equal(region.mean, way.points[t])
        np.testing.assert_array_equal(region.taken, way.points[t + 1])


def test_steps_end_on_the_border_or_at_the_optimum(way: Descent) -> None:
    cut = 0
    for region in way.regions:
        kl = 0.5 * np.sum(region.prec * (region.taken - region.mean) ** 2)  # from the picture, not from the optimizer
        assert kl == pytest.approx(region.kl, rel=1e-6)
        if region.eta > 0:
            cut += 1
            assert kl == pytest.approx(region.bound, rel=1e-3)
            # eq:primal_mean with the recorded model and precision
            expected = region.mean - region.num / (region.A + region.eta * region.prec)
            np.testing.assert_allclose(region.taken, expected, rtol=1e-6, atol=1e-12)
        else:
            assert kl <= region.bound * 1.001
            np.testing.assert_allclose(region.taken, region.optimum, rtol=1e-6)
    assert cut > 3


def test_radii_and_gradient_end_lie_on_the_border(way: Descent) -> None:
    for region in way.regions:
        for end in (region.gradient_end, *(region.mean + region.radii * corner for corner in ([1, 0], [0, -1], [0.6, 0.8]))):
            assert 0.5 * np.sum(region.prec * (end - region.mean) ** 2) == pytest.approx(region.bound)
        down = region.gradient_end - region.mean
        assert down @ region.gradient == pytest.approx(-np.linalg.norm(down) * np.linalg.norm(region.gradient))


def test_first_region_is_the_initial_state(way: Descent, name: str) -> None:
    # a_0 = 0.1 and rho = 0.1 without a prior: stationary precision a_0 / rho = 1
    np.testing.assert_allclose(way.regions[0].prec, [1.0, 1.0])
    assert way.regions[0].bound == SETTINGS[name]["arturo"]["kl_bound"]


def test_watching_changes_nothing(name: str, way: Descent) -> None:
    """The same optimizer without the watcher goes the same way, bit for bit."""
    landscape, random = LANDSCAPES[name], torch.Generator().manual_seed(3)
    start = torch.tensor(landscape.start, dtype=torch.float64) + 0.1 * torch.randn(2, generator=random, dtype=torch.float64)
    noise = landscape.noise * torch.randn(60, 2, generator=random, dtype=torch.float64)
    theta = torch.nn.Parameter(start)
    optimizer = Arturo([theta], prior_precision=0.0, initial_curvature=0.1, **SETTINGS[name]["arturo"])
    for t in range(60):
        optimizer.param_groups[0]["lr"] = cosine(t / 60)
        theta.grad = landscape.gradient(theta) + noise[t]
        optimizer.step()
        assert theta.tolist() == way.points[t + 1].tolist()


@pytest.mark.parametrize("optimizer", BUILD)
def test_seed_sets_start_and_noise(optimizer: str) -> None:
    landscape, settings = LANDSCAPES["noisy-quadratic"], SETTINGS["noisy-quadratic"][optimizer]
    one, again, other = (descend(landscape, optimizer, settings, steps=5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.points, again.points)
    assert (one.points[0] != other.points[0]).all()
    assert np.abs(one.points[0] - landscape.start).max() < 0.5
    np.testing.assert_array_equal(one.points[0], descend(landscape, "sgd", {"lr": 1e-3}, steps=1, seed=1).points[0])


def test_losses_are_those_of_the_points(way: Descent, name: str) -> None:
    np.testing.assert_array_equal(way.losses, LANDSCAPES[name].loss(torch.from_numpy(way.points)).numpy())


def test_divergence_ends_the_way() -> None:
    way = descend(LANDSCAPES["rosenbrock"], "sgd", {"lr": 1.0}, steps=50)
    assert way.diverged and 1 <= len(way.points) < 20
    assert np.isfinite(way.points).all() and len(way.losses) == len(way.points)


def test_angle() -> None:
    region = descend(LANDSCAPES["beale"], "arturo", SETTINGS["beale"]["arturo"], steps=3).regions[0]
    assert region.angle == pytest.approx(0, abs=0.1)  # nothing learned yet: the step is a gradient step


@pytest.mark.parametrize(("key", "values"), [("steps", {"steps": 0}), ("seed", {"seed": -1})])
def test_bad_values_are_named(key: str, values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: must be an integer >= ., got {values[key]}"):
        descend(LANDSCAPES["beale"], "sgd", {"lr": 1e-3}, **values)
    with pytest.raises(ConfigError, match=r"^optimizer: unknown name 'sdg'; did you mean sgd"):
        descend(LANDSCAPES["beale"], "sdg", {})


def test_settings_are_the_best_of_the_committed_search() -> None:
    trials = json.loads(GRID.read_text())
    for landscape, chosen in SETTINGS.items():
        for optimizer, settings in chosen.items():
            mine = [t for t in trials if (t["landscape"], t["optimizer"]) == (landscape, optimizer)]
            best = min(mine, key=lambda trial: trial["score"])
            assert len(mine) == 24
            assert {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()} == best["settings"]


def test_a_committed_score_comes_out_again() -> None:
    (trial,) = (
        t for t in json.loads(GRID.read_text())
        if (t["landscape"], t["optimizer"]) == ("beale", "sgd") and t["settings"] == SETTINGS["beale"]["sgd"]
    )  # fmt: skip
    ends = [descend(LANDSCAPES["beale"], "sgd", trial["settings"], STEPS, seed).losses[-1] for seed in range(100, 108)]
    assert np.mean(np.log10(ends)) == pytest.approx(trial["score"], abs=0.01)
