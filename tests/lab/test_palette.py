"""The palette: colours that differ for every eye, on paper and on a dark screen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.palette import STYLES, style

MAIN = ("sgd", "adam", "adamw", "arturo", "arturo-paper")  # the paper's table: one hue each

# Machado, Oliveira & Fernandes (2009): what a dichromat sees, as a matrix on linear RGB.
EYES = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 1e-9))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_main_colours_differ_for_every_eye(eye: str, theme: str) -> None:
    seen = {name: lab(np.array(EYES[eye]) @ linear(getattr(STYLES[name], theme))) for name in MAIN}
    for one, other in itertools.combinations(MAIN, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (one, other)  # 2.3 is a just noticeable difference


@pytest.mark.parametrize("name", STYLES)
def test_colours_stand_out(name: str) -> None:
    assert contrast(STYLES[name].light, "#FFFFFF") > 2
    assert contrast(STYLES[name].dark, "#14161A") > 4.5


def test_no_two_optimizers_look_alike() -> None:
    assert len({(s.light, s.dashes) for s in STYLES.values()}) == len(STYLES)
    assert len({s.light for s in map(style, MAIN)}) == len({s.dashes for s in map(style, MAIN)}) == len(MAIN)


def test_every_registered_optimizer_has_a_style() -> None:
    assert set(OPTIMIZERS) <= set(STYLES)


def test_variants_keep_the_colour_and_change_the_dashes() -> None:
    looks = [style("adam", variant) for variant in range(4)]
    assert len({look.light for look in looks}) == 1
    assert len({look.dashes for look in looks}) == 4


def test_unknown_names_are_stable() -> None:
    assert style("some-optimizer") == style("some-optimizer")
    assert len({style(f"new-{k}") for k in range(40)}) > 8
