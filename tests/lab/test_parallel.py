"""``--parallel``: what is refused, what keys depend on, and the real thing under torchrun. tests/distributed has the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arturo_lab.cli import main
from arturo_lab.errors import ConfigError
from arturo_lab.runs.config import RunConfig
from arturo_lab.training.parallel import Processes

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["train", "digits-mlp", "--epochs", "2", "--subset", "100"]


def test_an_unknown_way_is_refused():
    with pytest.raises(ConfigError, match=r"parallel: .*ddp"):
        RunConfig.for_task("digits-mlp", "arturo", parallel="dpp")


def test_no_torchrun_is_said(tmp_path, capsys):
    assert main([*COMMAND, "--parallel", "ddp", "--out", str(tmp_path)]) == 2
    assert "torchrun --nproc-per-node 2 -m arturo_lab train TASK --parallel ddp" in capsys.readouterr().err


def test_torchrun_without_a_way_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*COMMAND, "--out", str(tmp_path)]) == 2
    assert "ddp or fsdp2" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_keys_of_one_process_do_not_know_of_it():
    plain, parallel = (RunConfig.for_task("digits-mlp", "arturo", parallel=x) for x in (None, "ddp"))
    assert "parallel" not in plain.identity() and plain.key != parallel.key


def test_one_process_is_left_alone():
    alone, x = Processes(), torch.arange(3)
    model = torch.nn.Linear(1, 1)
    assert alone.first and alone.share(5) == 5 and alone.everyone(5) == [5] and alone.total([1.0], x.device) == [1.0]
    assert torch.equal(alone.part(x), x) and alone.spread(model) is model


def test_torchrun(tmp_path, capfd):
    """One heading, one folder, and the result of one process."""
    assert main([*COMMAND, "--out", str(tmp_path / "one")]) == 0
    expected = capfd.readouterr().out
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "arturo_lab"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    command = [*torchrun, *COMMAND, "--out", str(tmp_path / "two"), "--parallel", "fsdp2"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("epoch  train loss") == 1 and len(said.stdout.splitlines()) == len(expected.splitlines())
    results = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/digits-mlp/*/result.json"))]
    assert len(results) == 2
    for key in ("test_loss", "train_loss", "test_accuracy"):
        assert results[1][key] == pytest.approx(results[0][key], rel=1e-4)
    (environment,) = tmp_path.glob("two/digits-mlp/*/environment.json")
    assert json.loads(environment.read_text())["processes"] == 2
