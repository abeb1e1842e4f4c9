"""The examples run as their first lines say, and learn something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(folder: Path, *words: str, processes: int = 0) -> str:
    """What an example prints, started in ``folder``."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)) if processes else ()
    name, *options = words
    done = subprocess.run(
        (sys.executable, *torchrun, str(EXAMPLES / name), *options),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracies(output: str) -> dict[int, float]:
    return {int(epoch): float(value) for epoch, value in re.findall(r"epoch +(\d+).*?accuracy (0\.\d+|1\.0+)", output)}


def test_quickstart(tmp_path):
    said = re.search(r"test accuracy (\d+\.\d)%", run(tmp_path, "quickstart.py"))
    assert said is not None and float(said[1]) > 95


def test_ddp(tmp_path):
    found = accuracies(run(tmp_path, "ddp.py", processes=2))
    assert list(found) == list(range(1, 11)) and found[10] > 0.85


def test_fsdp2_goes_on_with_another_number_of_processes(tmp_path):
    first = accuracies(run(tmp_path, "fsdp2.py", "--epochs", "3", processes=2))
    then = accuracies(run(tmp_path, "fsdp2.py", "--epochs", "6", processes=1))
    assert list(first) == [1, 2, 3] and list(then) == [4, 5, 6]
    assert then[6] > max(first[3], 0.8)


def test_posterior_regression(tmp_path):
    run(tmp_path, "posterior_regression.py")
    assert (tmp_path / "posterior_regression.png").stat().st_size > 10_000
