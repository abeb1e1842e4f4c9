"""Every way through ``Arturo``'s step still takes the recorded steps: see ``trajectories.py``."""

import json
import shutil

import pytest
import torch
import trajectories

from arturo.kernels import native

RECORDED = json.loads(trajectories.FILE.read_text(encoding="utf-8"))
SAME_MACHINE = RECORDED["machine"] == trajectories.machine()
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient entries were not finite"),
    pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def compare(name, row):
    expected = RECORDED["rows"][name]
    assert row["sums"].keys() == expected["sums"].keys()
    for key, sums in expected["sums"].items():
        assert row["sums"][key] == pytest.approx(sums, rel=1e-2, abs=1e-3), key
    if SAME_MACHINE:
        assert row["digest"] == expected["digest"], name


@pytest.mark.parametrize("name", trajectories.names())
def test_a_recorded_trajectory(name):
    if name.startswith("native") and not native.available():
        pytest.skip("no compiler when arturo was installed")
    if name.startswith("compiled") and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    compare(name, trajectories.record(trajectories.run(name)))


def test_recorded_trajectories_on_two_processes():
    for name, row in trajectories.all_sharded().items():
        compare(name, row)


def test_every_way_has_a_row():
    shards = {f"{name}.{rank}" for name in trajectories.SHARDED for rank in range(trajectories.WORLD)}
    assert set(RECORDED["rows"]) == {*trajectories.names(), *shards}
