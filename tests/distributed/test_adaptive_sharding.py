"""AdaArturo on several processes, gloo on loopback. What runs in them: adaptive.py."""

from __future__ import annotations

import adaptive
import pytest


@pytest.fixture(scope="module")
def wrong(launch):
    return launch(adaptive.CASES)


@pytest.mark.parametrize(("world", "case"), [(world, case) for world, cases in adaptive.CASES.items() for case in cases])
def test_processes(wrong, world, case):
    assert not wrong[world, case], wrong[world, case]
