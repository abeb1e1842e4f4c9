"""What a step allocates beyond parameters, gradients and state: bounds that do not grow with the model."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arturo import AdaArturo, Arturo
from arturo.kernels import foreach, native
from arturo.kernels.adaptive import row as adaptive_row
from arturo.kernels.eager import PIECE

MIB = 2**20
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))  # for what it imports from its folder
peak_allocated = runpy.run_path(str(ROOT / "benchmarks" / "memory.py"))["peak_allocated"]
sys.path.remove(str(ROOT / "benchmarks"))
needs_extension = pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")
BFLOAT16_STATE = {"state_dtype": torch.bfloat16}


def make(weights: int, tensors: int, dtype: torch.dtype = torch.float32, **options) -> Arturo:
    """An optimizer whose state is made (a step with lr = 0 does no more than that): its next step is a first observation."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for _ in range(tensors):
        p = torch.nn.Parameter((0.05 * torch.randn(weights // tensors, generator=generator)).to(dtype))
        p.grad = (1e-3 * torch.randn(p.shape, generator=generator)).to(dtype)
        params.append(p)
    optimizer = Arturo(params, **options)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 1.0
    return optimizer


def peaks(optimizer: Arturo) -> tuple[int, int]:
    """Of the first step, which has a probe, and of an ordinary one."""
    first = peak_allocated(optimizer.step)
    optimizer.step()
    ordinary = peak_allocated(optimizer.step)
    assert optimizer.last_step.active and optimizer.last_step.evaluations == 1
    return first, ordinary


def test_the_measurement_sees_temporaries():
    x = torch.ones(MIB // 4)
    assert MIB <= peak_allocated(lambda: x + 1) < 1.1 * MIB
    assert 2 * MIB <= peak_allocated(lambda: (x + 1) * (x + 2) + 3) < 3.1 * MIB
    assert peak_allocated(lambda: x.add_(1)) < 0.1 * MIB


@needs_extension
@pytest.mark.parametrize("tensors", [1, 50])
@pytest.mark.parametrize("options", [{}, BFLOAT16_STATE, {"dtype": torch.bfloat16}], ids=["float32", "state", "half"])
def test_native_step_needs_less_than_a_mebibyte(tensors, options):
    assert max(peaks(make(4_000_000, tensors, **options))) < MIB


@needs_extension
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not tell the peak")
def test_native_step_allocates_no_list_behind_torchs_back():
    """The C++ side's own memory: the process grows by far less than one list of 16 MB during a step (_foreach: by 127 MiB)."""
    command = (sys.executable, ROOT / "benchmarks" / "memory.py", "--one", "native", "--weights", "4000000", "--tensors", "50")
    # The C library gives large blocks back at once: what it kept from the steps before would hide a new allocation.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    row = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)
    assert row["peak_torch_bytes"] < MIB
    assert row["peak_process_bytes"] < 4 * MIB  # pages of code and of other threads' stacks count too
    assert row["state_bytes_per_weight"] == pytest.approx(24, abs=0.01)


# The most float32 lists of PIECE entries alive at a time. What is float64 (the sums) or int64 (the rounding bits) counts twice.
EAGER_LISTS = {
    "float32": ({}, 22.5),
    "absolute": ({"initial_curvature": 0.1}, 22.5),
    "half": ({"maximize": True, "dtype": torch.bfloat16}, 23.5),
    "state": (BFLOAT16_STATE, 29.8),  # the gradient in units of the loss counts: 29 with initial_curvature=0.1
    "absolute-state": ({**BFLOAT16_STATE, "initial_curvature": 0.1}, 29),
}


def eager_peaks(name: str) -> list[tuple[int, int]]:
    options, _ = EAGER_LISTS[name]
    return [peaks(make(pieces * PIECE, 1, foreach=False, **options)) for pieces in (3, 20)]


@pytest.mark.parametrize("name", EAGER_LISTS)
def test_eager_loop_needs_a_fixed_number_of_pieces(name):
    """In a process of its own: once Dynamo evaluates frames a caller holds its arguments longer, up to two lists of them."""
    command = (sys.executable, __file__, name)
    small, large = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)
    assert max(large) <= 4 * PIECE * EAGER_LISTS[name][1], f"{max(large) / 4 / PIECE:.2f} lists"
    assert large[1] - small[1] <= PIECE / 8  # the sums of each piece stay until all are there


# The same for lists of PART entries. What goes tensor by tensor is small beside them: tensors are cut into eighths of a part.
@pytest.mark.parametrize(
    ("options", "lists"),
    [
        ({}, 10.5),  # the gradients in units of the loss are one list
        ({"initial_curvature": 0.1}, 9.5),
        ({"maximize": True, "dtype": torch.bfloat16, "capturable": True, "weight_decay": 0.1}, 10.6),
        (BFLOAT16_STATE, 10.5),
    ],
    ids=["float32", "absolute", "worst", "state"],
)
@pytest.mark.parametrize("parts", [1, 4])
def test_foreach_needs_a_fixed_number_of_lists(monkeypatch, options, lists, parts):
    monkeypatch.setattr(foreach, "PART", 1 << 16)
    for tensors in (16 * parts, 1):
        optimizer = make(parts * foreach.PART, tensors, foreach=True, **options)
        peak = peak_allocated(optimizer.step)
        assert peak <= 4 * foreach.PART * lists, f"{peak / 4 / foreach.PART:.2f} lists with {tensors} tensors"


@pytest.mark.parametrize("options", [{"foreach": False}, {**BFLOAT16_STATE, "fused": False}], ids=["float32", "state"])
@pytest.mark.parametrize("covariance", ["kronecker", "diagonal"])
def test_a_large_tensor_goes_band_by_band(monkeypatch, covariance, options):
    monkeypatch.setattr(adaptive_row, "BAND", {True: 1 << 15})
    found = []
    for rows in (512, 2048):
        p = torch.nn.Parameter(torch.randn(rows, 256))
        p.grad = torch.randn(rows, 256)
        optimizer = AdaArturo([p], covariance=covariance, **options)
        optimizer.step()  # makes the bases
        found.append(peak_allocated(optimizer.step))
    assert found[1] < 1.1 * found[0], [x / MIB for x in found]


if __name__ == "__main__":
    print(json.dumps(eager_peaks(sys.argv[1])))
