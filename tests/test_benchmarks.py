"""The scripts of benchmarks/, as small as they go: they run, and write a table with a row per contender."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arturo.kernels import native

pytest.importorskip("rich", reason="benchmarks need the laboratory")
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FEW = "--contenders ada-diagonal adamw-fused"
SMALL = {
    "memory": ("--weights 1000 --tensors 1 --cases ada-diagonal adamw-fused", ["AdaArturo, diagonal", "AdamW, fused"]),
    "step_time": (f"--shapes fmnist-cnn --rounds 1 --sweep 0 {FEW}", ["AdaArturo, diagonal", "AdamW, fused"]),
    "training_step": (f"--networks mlp --rounds 2 {FEW}", ["AdaArturo, diagonal", "AdamW, fused"]),
    "time_to_target": ("--problems mlp --seeds 1 --rates 1e-3 --steps 4 --every 2", ["adaarturo", "adamw 0.001"]),
    "roofline": ("--weights 100000 --rounds 1", ["AdaArturo, diagonal, streams alone"]),
}


@pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_writes_its_table(name, tmp_path):
    arguments, rows = SMALL[name]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", *arguments.split(), "--threads", "1", "--out", tmp_path],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = (tmp_path / f"{name}.md").read_text()
    for row in rows:
        assert f"\n| {row} |" in table
