"""experiments/variants.py: AdaArturo's switchable twin trains as AdaArturo does, resumes, and is searched by the laboratory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from arturo_lab import cli
from arturo_lab.data import loading
from arturo_lab.references import look_up
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import read_run
from arturo_lab.training.train import train

NAME = "experiments/variants.py:Variant"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def test_the_twin_trains_as_adaarturo_does() -> None:
    """Means over two seeds; the trajectories differ, since AdaArturo's first steps are shorter and its tiles take turns."""
    data = loading.load("digits")
    losses = {
        name: [
            train(RunConfig.for_task("digits-mlp", name, seed, 8, fold="1/5", threads=1), data)[-1].test_loss for seed in (0, 1)
        ]
        for name in ("adaarturo", NAME, "adamw")
    }
    ours, twin, adamw = (sum(values) / 2 for values in losses.values())
    assert twin == pytest.approx(ours, rel=0.15) and adamw > 1.5 * ours


def regression(**switches: Any) -> tuple[nn.Parameter, Any, Any]:
    """Without noise, so that the curvature limits the steps."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    w = nn.Parameter(torch.zeros(3, 4))
    variant: Any = look_up("optimizer", NAME)
    optimizer = variant([w], lr=1e-2, **switches)

    def step() -> None:
        optimizer.zero_grad()
        (x @ w.T - x[:, :3] + 1).square().mean().backward()
        optimizer.step()

    return w, optimizer, step


@pytest.mark.parametrize(
    "switches",
    [{}, {"newton": None}, {"shared": True}, {"level": "falls"}, {"region": "tensor"}, {"kronecker": False}],
    ids=lambda switches: " ".join(f"{name}={value}" for name, value in switches.items()) or "default",
)
def test_a_checkpoint_resumes_with_the_same_bits(switches: dict[str, Any]) -> None:
    w, optimizer, step = regression(**switches)
    for _ in range(20):
        step()
    file = io.BytesIO()
    torch.save({"w": w.detach(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, other, step_again = regression(**switches)
    with torch.no_grad():
        again.copy_(saved["w"])
    other.load_state_dict(saved["optimizer"])
    for _ in range(20):
        step()
        step_again()
    assert torch.equal(w, again)


def test_the_curvature_limits_the_steps_of_that_regression() -> None:
    """Otherwise the test above would not notice that a checkpoint forgot it."""
    one, two = regression(), regression(newton=None)
    for _ in range(40):
        one[2]()
        two[2]()
    assert not torch.equal(one[0], two[0])


def test_switches_are_searched_from_the_command_line(tmp_path: Path) -> None:
    """As experiments/LOG.md says: switches that are words or numbers, and several settings in one folder."""
    command = f"compare digits-mlp --optimizers {NAME} --fold 1/5 --schedule constant --epochs 1 --subset 200 --seeds 1"
    for switches in (["rule=cap", "level=falls", "vector=0.1"], ["rule=knee:0.1", "piece=none", "student=all:4"]):
        chosen = ["--set", *(f"{NAME}.{switch}" for switch in switches)]
        assert cli.main([*command.split(), "--threads", "1", "--yes", "--out", str(tmp_path), *chosen]) == 0
    runs = [read_run(path.parent) for path in sorted(tmp_path.rglob("result.json"))]
    settings = {run.config["settings"]["rule"]: run.config["settings"] for run in runs}
    assert settings["cap"]["level"] == "falls" and settings["cap"]["vector"] == 0.1 and settings["cap"]["piece"] == 64
    assert settings["knee:0.1"]["piece"] is None and settings["knee:0.1"]["student"] == "all:4"
    assert cli.main(["report", str(tmp_path)]) == 0
