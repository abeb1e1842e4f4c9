"""A process that dies: torchrun starts all of them again, and they resume from the last checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import killed
import torch
from checkpoints import make
from training import train

HERE = Path(__file__).parent


def test_a_killed_process_costs_the_steps_since_the_checkpoint(tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"}
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else gloo finds the addresses of the dead in the launcher's store
    command = (*torchrun, str(HERE / "killed.py"), str(tmp_path))
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert [(tmp_path / f"began.{i}").read_text() for i in (0, 1)] == ["0", "6"]

    model, optimizer = make(torch.float32, False)
    train(model, optimizer, steps=killed.STEPS)
    ended = torch.load(tmp_path / "ended.pt")
    for name, p in model.named_parameters():
        torch.testing.assert_close(ended[name], p.detach(), rtol=1e-4, atol=1e-5)
