"""Memory: bytes of state per weight, and what a step needs beyond parameters, gradients and state.

    python benchmarks/memory.py --out results --threads 2

Every row is a process of its own. After three steps two peaks of one further step are taken:

* torch: the most bytes alive at a time of those that torch's allocator gave out during the step, from the profiler's memory
  events, so that temporaries inside an operation count too;
* process: the growth of the resident memory to its peak during the step (Linux; the mark is reset just before), which sees
  what C++ code allocates by itself. It counts pages, of all that goes on in the process, and is good to some 0.3 MiB. The C
  library is told to give large blocks back at once, else the peak would be memory kept from the steps before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from contenders import CONTENDERS, missing, without_native
from machine import command, load, machine, machine_line, plural
from rich.progress import track
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile

from arturo import AdaArturo, Arturo

MIB = 2**20
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
HALF = torch.bfloat16
CHILD = {
    "MALLOC_MMAP_THRESHOLD_": "65536",  # larger blocks come from the system and go back to it
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "KINETO_LOG_LEVEL": "99",  # the profiler's own messages
}


class Case(NamedTuple):
    title: str
    make: Callable[[list[Tensor]], Optimizer]
    dtype: torch.dtype = torch.float32  # of the parameters
    needs: str | None = None  # a contender that must be there
    around: Callable[[], AbstractContextManager[None]] = nullcontext


CASES = {
    "native": Case("Arturo, native", Arturo, needs="native"),
    "native-bf16": Case("Arturo, native, bfloat16 state", lambda p: Arturo(p, state_dtype=HALF), needs="native"),
    "native-half": Case("Arturo, native, bfloat16 parameters", Arturo, HALF, "native"),
    "native-half-bf16": Case(
        "Arturo, native, bfloat16 parameters and state", lambda p: Arturo(p, state_dtype=HALF), HALF, "native"
    ),
    "compiled": Case("Arturo, compiled", lambda p: Arturo(p, fused=True), needs="compiled", around=without_native),
    "eager": Case("Arturo, eager loop", lambda p: Arturo(p, foreach=False)),
    "eager-bf16": Case("Arturo, eager loop, bfloat16 state", lambda p: Arturo(p, foreach=False, state_dtype=HALF)),
    "foreach": Case("Arturo, _foreach", lambda p: Arturo(p, foreach=True)),
    "foreach-bf16": Case("Arturo, _foreach, bfloat16 state", lambda p: Arturo(p, foreach=True, state_dtype=HALF)),
    "ada": Case("AdaArturo", AdaArturo, needs="native"),
    "ada-bf16": Case("AdaArturo, bfloat16 state", lambda p: AdaArturo(p, state_dtype=HALF), needs="native"),
    "ada-diagonal": Case("AdaArturo, diagonal", lambda p: AdaArturo(p, covariance="diagonal"), needs="native"),
    "ada-diagonal-bf16": Case(
        "AdaArturo, diagonal, bfloat16 state", lambda p: AdaArturo(p, covariance="diagonal", state_dtype=HALF), needs="native"
    ),
    "soap": Case("SOAP", CONTENDERS["soap"].make, needs="soap"),
    "muon": Case("Muon", CONTENDERS["muon"].make, needs="muon"),
    "adamw-fused": Case("AdamW, fused", lambda p: AdamW(p, fused=True)),
    "adamw-half": Case("AdamW, fused, bfloat16 parameters", lambda p: AdamW(p, fused=True), HALF),
    "adamw-foreach": Case("AdamW, foreach", lambda p: AdamW(p, foreach=True)),
    "adamw-loop": Case("AdamW, for-loop", lambda p: AdamW(p, foreach=False)),
}


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes behind the tensors of the state, memory shared between them counted once."""
    storages = (x.untyped_storage() for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def peak_allocated(function: Callable[[], object]) -> int:
    """Most bytes alive at a time of those that torch's allocator gave out while the function ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        function()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def peak_resident(function: Callable[[], object]) -> int | None:
    """Growth of the resident memory to its peak while the function ran; None where the system does not say."""
    try:
        CLEAR.write_text("5")  # the peak so far becomes what is resident now
    except OSError:
        return None
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before


def resident(name: str) -> int:
    """A size in bytes from the system's table of this process."""
    return next(1024 * int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(name))


def measure(name: str, weights: int, tensors: int) -> dict[str, Any]:
    """One row, to be called in a process of its own."""
    case = CASES[name]
    torch.manual_seed(0)
    shape = (side := math.isqrt(weights // tensors), weights // tensors // side)
    params = [torch.nn.Parameter((0.05 * torch.randn(shape)).to(case.dtype)) for _ in range(tensors)]
    for p in params:
        p.grad = 1e-3 * torch.randn_like(p)
    with case.around():
        optimizer = case.make(params)
        for _ in range(3):
            optimizer.step()
        process = peak_resident(optimizer.step)
        return {
            "title": case.title,
            "state_bytes_per_weight": state_bytes(optimizer) / sum(p.numel() for p in params),
            "peak_torch_bytes": peak_allocated(optimizer.step),
            "peak_process_bytes": process,
        }


def in_own_process(name: str, weights: int, tensors: int, threads: int) -> dict[str, Any]:
    options = ("--one", name, "--weights", str(weights), "--tensors", str(tensors), "--threads", str(threads))
    result = subprocess.run(
        [sys.executable, __file__, *options], env={**os.environ, **CHILD}, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(result.stdout))


def table(weights: int, tensors: int, rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"### {weights:,} weights in {plural(tensors, 'tensor')}",
        "",
        "| | state, bytes per weight | peak of a step, torch, MiB | bytes per weight | peak of a step, process, MiB |",
        "|---|---|---|---|---|",
    ]
    for row in rows.values():
        allocated, process = row["peak_torch_bytes"], row["peak_process_bytes"]
        cells = (
            row["title"], f"{row['state_bytes_per_weight']:.2f}", f"{allocated / MIB:.3f}", f"{allocated / weights:.2f}",
            "?" if process is None else f"{process / MIB:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(results: dict[str, Any]) -> str:
    lines = ["# Memory", "", f"`{results['command']}`", "", f"{machine_line(results['machine'])}."]
    lines += [f"\nNot measured: {CASES[name].title}, because {reason}." for name, reason in results["skipped"].items()]
    lines += ["\n" + table(found["weights"], found["tensors"], found["cases"]) for found in results["lists"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/memory"), help="folder for memory.json and memory.md")
    parser.add_argument("--weights", type=int, default=20_000_000)
    parser.add_argument("--tensors", type=int, nargs="+", default=[1, 100], help="tensors that share the weights")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", choices=CASES, help="measure this case here and print its row as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.weights, arguments.tensors[0])))
        return
    skipped = {name: reason for name in arguments.cases if (needs := CASES[name].needs) and (reason := missing(needs))}
    names = [name for name in arguments.cases if name not in skipped]
    results: dict[str, Any] = {"command": command(), "machine": machine(), "skipped": skipped, "lists": []}
    for tensors in arguments.tensors:
        bar = track(names, description=f"{tensors} x {arguments.weights // tensors:,}", transient=True)
        rows = {name: in_own_process(name, arguments.weights, tensors, arguments.threads) for name in bar}
        results["lists"].append({"weights": arguments.weights, "tensors": tensors, "cases": rows})
    results["machine"]["load_after"] = load()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "memory.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "memory.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
