"""``arturo show``: which step is shown, what is written, how it says no."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arturo_lab import cli
from arturo_lab.registry import ConfigError
from arturo_lab.show import show
from arturo_lab.show.animation import frame_steps
from arturo_lab.show.descent import SETTINGS, Descent, TrustRegion, descend
from arturo_lab.show.landscapes import LANDSCAPES
from arturo_lab.show.step_figure import around, better_than_gradient, step_figure, telling_step

BEALE = LANDSCAPES["beale"]


@pytest.fixture(scope="module")
def way() -> Descent:
    return descend(BEALE, "arturo", SETTINGS["beale"]["arturo"], steps=100)


def made_up(taken: tuple[float, float], gradient: tuple[float, float], eta: float = 1.0, A: float = 1.0) -> TrustRegion:
    """A step from (2, 0) whose model has its optimum at (3, 0.5), Beale's minimum."""
    mean, unit = np.array([2.0, 0.0]), np.ones(2)
    return TrustRegion(mean, np.array(gradient), unit, -A * np.array([1.0, 0.5]), A * unit, np.array(taken), eta, 0.05, 0.05)


def test_telling_step_gains_most_over_the_gradient() -> None:
    dull = made_up((2.2, 0.1), (-1, -0.5))
    telling = made_up((2.2, 0.1), (0, 1))  # the gradient step goes down, away from the minimum
    inside, far = made_up((2.2, 0.1), (0, 1), eta=0.0), made_up((2.01, 0.005), (0, 1))
    flat = dataclasses.replace(telling, A=np.array([1e-8, 1.0]))
    regions = [dull, inside, flat, far, telling, dull] + [dull] * 54
    assert telling_step(BEALE, regions) == 4
    assert telling_step(BEALE, [dull] * 20 + [telling] * 3) == 0  # the late ones are not looked at
    assert telling_step(BEALE, [inside]) is None


def test_no_telling_step_is_an_error_for_the_figure_alone(tmp_path: Path) -> None:
    ways = show.race(["beale"], steps=2)
    with pytest.raises(ConfigError, match=r"^steps: the first tenth of 2 on beale has none that makes a picture; .*--at"):
        show.write(ways, tmp_path, ["png", "html"])
    assert list(tmp_path.iterdir()) == []
    assert [path.name for path in show.write(ways, tmp_path, ["html", "gif"])] == ["trust-region.html", "race.gif"]


def test_better_than_gradient_counts_the_steps_that_were_cut() -> None:
    better, worse, inside = made_up((2.2, 0.1), (0, 1)), made_up((1.8, -0.1), (-1, -0.5)), made_up((2.2, 0.1), (0, 1), eta=0.0)
    assert better_than_gradient(BEALE, [better, worse, better, inside]) == (2, 3)
    assert better_than_gradient(BEALE, [inside]) == (0, 0)


def test_window_holds_all_of_the_step(way: Descent) -> None:
    for region in way.regions:
        left, right, low, high = around(region)
        assert right - left == pytest.approx(high - low)
        for x, y in (region.mean + region.radii, region.mean - region.radii, region.taken, region.gradient_end):
            assert left < x < right and low < y < high


def test_figure_draws_ellipse_and_arrows_where_the_step_says(way: Descent) -> None:
    figure = step_figure({"beale": way}, at=4)
    (axes,) = figure.axes
    region = way.regions[3]
    ellipses = [patch for patch in axes.patches if type(patch).__name__ == "Ellipse"]
    border = ellipses[-1]
    np.testing.assert_allclose(border.center, region.mean)
    np.testing.assert_allclose((border.width, border.height), 2 * region.radii)
    through_mean = ellipses[2]  # the model's contour through the mean
    np.testing.assert_allclose(through_mean.center, region.optimum)
    x, y = region.mean - region.optimum
    assert (2 * x / through_mean.width) ** 2 + (2 * y / through_mean.height) ** 2 == pytest.approx(1)
    ends = [tuple(line.get_xydata()[-1]) for line in axes.lines if len(line.get_xydata()) == 2]
    assert tuple(region.taken) in ends and tuple(region.gradient_end) in ends and tuple(region.optimum) in ends
    assert axes.get_title(loc="right") == "step 4"


def test_figure_without_a_model_minimum(way: Descent) -> None:
    t = next(t for t, region in enumerate(way.regions) if not region.convex)
    (axes,) = step_figure({"beale": way}, at=t + 1).axes
    assert sum(type(patch).__name__ == "Ellipse" for patch in axes.patches) == 2  # the region alone


def test_frames_go_from_start_to_end() -> None:
    for steps in (1, 2, 89, 300, 5000):
        shown = frame_steps(steps)
        assert shown[0] == 0 and shown[-1] == steps and shown == sorted(set(shown)) and len(shown) <= 90


def test_command_writes_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "show trust-region --landscape beale noisy-quadratic --steps 40 --format png pdf gif html --out"
    assert cli.main([*command.split(), str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "race.gif",
        "trust-region.html",
        "trust-region.pdf",
        "trust-region.png",
    ]
    assert (tmp_path / "trust-region.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(tmp_path / "trust-region.png") as picture:
        assert picture.width > 1000 and len(np.unique(np.asarray(picture.convert("L").resize((60, 40))))) > 30
    with Image.open(tmp_path / "race.gif") as film:
        assert film.n_frames == len(frame_steps(40))
        first = np.asarray(film.convert("RGB"), dtype=int)
        film.seek(film.n_frames - 1)
        assert (np.abs(np.asarray(film.convert("RGB"), dtype=int) - first).sum(axis=2) > 60).sum() > 500  # something moved
    out = capsys.readouterr().out
    assert "Beale" in out and "noisy quadratic" in out and str(tmp_path / "race.gif") in out.replace("\n", "")


def test_same_seed_same_files(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        show.write(show.race(["beale"], steps=30, seed=5), tmp_path / folder, ["pdf", "html"], at=2)
    for name in ("trust-region.pdf", "trust-region.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trust-regoin", "arturo: what: unknown name 'trust-regoin'; did you mean trust-region"),
        ("trust-region --landscape baele", "arturo: landscape: unknown name 'baele'; did you mean beale"),
        ("trust-region --landscape beale beale", "arturo: landscape: named twice in beale beale"),
        ("trust-region --format svg", "arturo: format: unknown name 'svg'; known: png, pdf, gif, html"),
        ("trust-region --steps 0", "arturo: steps: must be an integer >= 1, got 0"),
        ("trust-region --seed -1", "arturo: seed: must be an integer >= 0, got -1"),
        (
            "trust-region --landscape beale --steps 20 --at 21 --format html",
            "arturo: at: must be a step between 1 and 20, got 21",
        ),
    ],
)
def test_mistakes(arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", *arguments.split(), "--out", str(tmp_path / "new")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1
    assert not (tmp_path / "new").exists()
