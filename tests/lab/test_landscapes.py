"""The two-dimensional losses: their minima are minima, their shapes are the ones the docstrings name."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arturo_lab.registry import ConfigError
from arturo_lab.show.landscapes import LANDSCAPES, TILT, beale, quadratic, rosenbrock

coordinate = st.floats(-4, 4)


@pytest.mark.parametrize("name", LANDSCAPES)
def test_minimum_is_zero_flat_and_convex(name: str) -> None:
    landscape = LANDSCAPES[name]
    minimum = torch.tensor(landscape.minimum, dtype=torch.float64)
    assert landscape.loss(minimum).item() == pytest.approx(0, abs=1e-30)
    assert landscape.gradient(minimum).abs().max() < 1e-12
    hessian = torch.autograd.functional.hessian(landscape.loss, minimum)
    assert torch.linalg.eigvalsh(hessian).min() > 0.1


@pytest.mark.parametrize("name", LANDSCAPES)
@given(x=coordinate, y=coordinate)
def test_nothing_is_below_the_minimum(name: str, x: float, y: float) -> None:
    assert LANDSCAPES[name].loss(torch.tensor([x, y], dtype=torch.float64)) >= 0


@pytest.mark.parametrize("name", LANDSCAPES)
def test_start_and_minimum_are_in_the_window(name: str) -> None:
    landscape = LANDSCAPES[name]
    left, right, low, high = landscape.window
    for x, y in (landscape.start, landscape.minimum):
        assert left < x < right and low < y < high
    assert landscape.loss(torch.tensor(landscape.start)) > 1


@given(x=coordinate, y=coordinate)
def test_formulas_by_hand(x: float, y: float) -> None:
    theta = torch.tensor([x, y], dtype=torch.float64)
    assert rosenbrock(theta).item() == pytest.approx((1 - x) ** 2 + 100 * (y - x * x) ** 2)
    terms = (1.5 - x + x * y, 2.25 - x + x * y * y, 2.625 - x + x * y * y * y)
    assert beale(theta).item() == pytest.approx(sum(t * t for t in terms))


def test_quadratic_has_curvatures_20_and_1_along_tilted_axes() -> None:
    hessian = torch.autograd.functional.hessian(quadratic, torch.zeros(2, dtype=torch.float64))
    steep = torch.tensor([math.cos(TILT), math.sin(TILT)], dtype=torch.float64)
    flat = torch.tensor([-math.sin(TILT), math.cos(TILT)], dtype=torch.float64)
    torch.testing.assert_close(hessian @ steep, 20 * steep)
    torch.testing.assert_close(hessian @ flat, flat)
    assert abs(hessian[0, 1]) > 5  # what a diagonal model cannot see


def test_losses_take_whole_grids() -> None:
    grid = torch.rand(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for landscape in LANDSCAPES.values():
        values = landscape.loss(grid)
        assert values.shape == (3, 4)
        assert values[2, 1] == landscape.loss(grid[2, 1])


@given(x=coordinate, y=coordinate)
def test_gradient_of_rosenbrock_by_hand(x: float, y: float) -> None:
    gradient = LANDSCAPES["rosenbrock"].gradient(torch.tensor([x, y], dtype=torch.float64)).tolist()
    assert gradient == pytest.approx([-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)])


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^landscape: unknown name 'rosenbrok'; did you mean rosenbrock"):
        LANDSCAPES["rosenbrok"]
