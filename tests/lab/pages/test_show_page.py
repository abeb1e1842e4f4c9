"""The live figure in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arturo_lab.show import show
from arturo_lab.show.landscapes import LANDSCAPES


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ways = show.race(["rosenbrock", "beale", "noisy-quadratic"], steps=40)
    (path,) = show.write(ways, tmp_path_factory.mktemp("show"), ["html"], at=4)
    return path


def test_draws_without_errors_and_without_network(browser, live) -> None:
    page = browser.open(live)
    assert page.js("document.querySelectorAll('.landscape svg .contour').length") == 6  # whole and close, three times
    assert page.js("[...document.querySelectorAll('.contour')].every(path => path.getAttribute('d').length > 5000)")
    assert page.js("document.querySelectorAll('.arrow.taken').length") == 4  # and one in the legend
    assert page.js("document.getElementById('clock').textContent") == "step 4 of 40"
    assert page.requests == [live.as_uri()] and page.errors == []


@pytest.mark.parametrize("name", LANDSCAPES)
def test_losses_are_the_python_ones(browser, live, name: str) -> None:
    points = (4 * torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 2).tolist()
    theirs = browser.open(live).js(f"{json.dumps(points)}.map(p => LOSSES[{json.dumps(name)}](...p))")
    torch.testing.assert_close(
        torch.tensor(theirs, dtype=torch.float64), LANDSCAPES[name].loss(torch.tensor(points, dtype=torch.float64))
    )


def test_contours_are_where_the_loss_is(browser, live) -> None:
    # every end of a piece of line has log(loss) at one of the equally spaced levels
    script = """(() => { const loss = (x, y) => Math.exp(x + 2 * y), lines = 5;
        const points = contours(loss, [0, 1, 0, 1], 40, lines).slice(1).split(/[ML]/).map(p => p.split(' ').map(Number));
        const step = 3 / (lines - 1); return points.map(([x, y]) => (x + 2 * y) / step); })()"""
    heights = browser.open(live).js(script)
    assert len(heights) > 100 and all(abs(h - round(h)) < 1e-3 for h in heights)
    assert {round(h) for h in heights} == {1, 2, 3}


def test_slider_and_keys_move_the_step(browser, live) -> None:
    page = browser.open(live)
    before = page.js("document.querySelector('#beale .said').textContent")
    page.js("document.getElementById('step').focus()")
    page.key("ArrowRight")
    assert page.js("document.getElementById('clock').textContent") == "step 5 of 40"
    assert page.js("document.querySelector('#beale .said').textContent") != before
    page.key("End")
    assert page.js("document.getElementById('clock').textContent") == "after 40 steps"
    assert page.errors == []


def test_play_runs_to_the_end_and_stops(browser, live) -> None:
    page = browser.open(live)
    page.js("document.getElementById('speed').value = '30'")
    page.click("#play")
    assert page.js("document.getElementById('play').textContent") == "Pause"
    page.wait("document.getElementById('clock').textContent === 'after 40 steps'")
    page.wait("document.getElementById('play').textContent === 'Play'")
    page.click("#play")
    page.wait("['step 2 of 40', 'step 3 of 40'].includes(document.getElementById('clock').textContent)")
    page.click("#play")
    assert page.js("document.getElementById('play').textContent") == "Play"


def test_toggle_hides_an_optimizer(browser, live) -> None:
    page = browser.open(live)
    visible = "[...document.querySelectorAll('#beale circle.head')].filter(node => node.style.display !== 'none').length"
    assert page.js(visible) == 3
    page.click("button[data-optimizer=sgd]")
    assert page.js(visible) == 2
    assert page.js("document.querySelector('button[data-optimizer=sgd]').getAttribute('aria-pressed')") == "false"
    page.click("button[data-optimizer=sgd]")
    assert page.js(visible) == 3


def test_dark_and_light(browser, live) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page = browser.open(live, dark=True)
    assert page.js(ground) == "rgb(20, 22, 26)"
    page.click("#theme")
    assert page.js(ground) == "rgb(255, 255, 255)"
    assert browser.open(live).js(ground) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [340, 700, 1600])
def test_fits_the_window(browser, live, width: int) -> None:
    assert browser.open(live, width=width).js("document.documentElement.scrollWidth") <= width
