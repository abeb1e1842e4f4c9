"""What a step's memory traffic alone would take: loops that read and write as many arrays as each pass does, and only add.

    python benchmarks/roofline.py --out results --threads 2

An optimizer that is not slower than its row here waits for memory and for nothing else. A pass that keeps many arrays open at
once reaches fewer GB/s than AdamW's: that, not the arithmetic, is then what separates its ratio from the ratio of the bytes.
Compiles a few lines of C++ with the compiler of ``$CXX`` (or ``c++``). Optimizers and loops take turns, each once per round;
reported are medians, and the median of the ratios to fused AdamW within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from contenders import CONTENDERS, REFERENCE
from machine import command, load, machine, machine_line, quartiles
from torch import Tensor

SOURCE = r"""
#include <cstdint>
constexpr int64_t BLOCK = 4096;  // as in the kernels

template <int READ, int WRITE>
static void add(float* const* arrays, int64_t from, int64_t to) {
    const float* x[READ];
    float* y[WRITE];
    for (int k = 0; k < READ; ++k) x[k] = arrays[k];
    for (int k = 0; k < WRITE; ++k) y[k] = arrays[READ + k];
#pragma GCC ivdep
    for (int64_t i = from; i < to; ++i) {
        float sum = 0;
#pragma GCC unroll 8
        for (int k = 0; k < READ; ++k) sum += x[k][i];
#pragma GCC unroll 8
        for (int k = 0; k < WRITE; ++k) y[k][i] += sum;
    }
}

template <int READ, int WRITE>
static void pass(float* const* arrays, int64_t n, int threads) {
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t j = 0; j < blocks; ++j)
        add<READ, WRITE>(arrays, j * BLOCK, (j + 1) * BLOCK < n ? (j + 1) * BLOCK : n);
}

extern "C" int streams(int read, int write, float* const* arrays, int64_t n, int threads) {
    switch (10 * read + write) {
        case 12: pass<1, 2>(arrays, n, threads); return 0;
        case 13: pass<1, 3>(arrays, n, threads); return 0;
        case 21: pass<2, 1>(arrays, n, threads); return 0;
        case 22: pass<2, 2>(arrays, n, threads); return 0;
        case 31: pass<3, 1>(arrays, n, threads); return 0;
        case 35: pass<3, 5>(arrays, n, threads); return 0;
    }
    return 1;
}
"""
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


class Streams(NamedTuple):
    """The passes of a step: arrays that are read only, and arrays that are read and written."""

    contender: str
    passes: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        return sum(4 * read + 8 * write for read, write in self.passes)


STEPS = (
    Streams("adamw-fused", ((1, 3),)),  # g; w, m, v
    Streams("ada-diagonal", ((1, 2), (2, 1))),  # g; M, r, then M, r; w
    Streams("native", ((3, 5), (2, 2))),  # g, w, prec; a, b and P's three, then a, b; w, prec
)


def compiled(folder: str) -> ctypes.CDLL:
    source, library = Path(folder, "streams.cpp"), Path(folder, "streams.so")
    source.write_text(SOURCE)
    subprocess.run([os.environ.get("CXX", "c++"), *FLAGS, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def optimizer_step(name: str, weights: int) -> Callable[[], object]:
    p = torch.nn.Parameter(torch.empty(weights // 1000, 1000).normal_(0, 0.05))
    p.grad = torch.empty_like(p).normal_(0, 1e-3)
    optimizer = CONTENDERS[name].make([p])
    return optimizer.step


def plain_step(library: ctypes.CDLL, step: Streams, arrays: list[Tensor], threads: int) -> Callable[[], object]:
    def run() -> None:
        for read, write in step.passes:
            some = (ctypes.c_void_p * (read + write))(*[x.data_ptr() for x in arrays[: read + write]])
            if library.streams(read, write, some, ctypes.c_int64(arrays[0].numel()), threads):
                raise ValueError(f"no loop over {read} + {write} arrays")

    return run


def apart(weights: int, place: int) -> Tensor:
    """Zeros at an offset in their page that differs between places, as the optimizers' state has it."""
    return torch.zeros(weights + 144 * place)[144 * place :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/roofline"), help="folder for roofline.json and roofline.md")
    parser.add_argument("--weights", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    about = machine()
    arrays = [apart(arguments.weights, place) for place in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        runs = {}
        for step in STEPS:
            runs[step.contender, "step"] = optimizer_step(step.contender, arguments.weights)
            runs[step.contender, "streams"] = plain_step(library, step, arrays, arguments.threads)
        times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
        for number in range(-3, arguments.rounds):
            for key, run in runs.items():
                start = time.perf_counter()
                run()
                if number >= 0:
                    times[key].append(1e3 * (time.perf_counter() - start))
    about["load_after"] = load()
    rows, reference = [], np.array(times[REFERENCE, "step"])
    for step in STEPS:
        for kind in ("step", "streams"):
            spent = np.array(times[step.contender, kind])
            rows.append(
                {
                    "title": CONTENDERS[step.contender].title + (", streams alone" if kind == "streams" else ""),
                    "bytes": step.bytes,
                    "ms": quartiles(spent),
                    "gb_per_s": arguments.weights * step.bytes / float(np.median(spent)) / 1e6,
                    "ratio": quartiles(spent / reference),
                }
            )
    lines = [
        "# Steps and their memory traffic alone", "", f"`{command()}`", "",
        f"{machine_line(about)}. {arguments.weights:,} weights in one tensor, {arguments.rounds} rounds.", "",
        "| | bytes per weight | ms | quartiles | GB/s | x fused AdamW | quartiles |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        (low, median, high), (a, ratio, c) = row["ms"], row["ratio"]
        cells = (
            row["title"], str(row["bytes"]), f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{row['gb_per_s']:.1f}",
            f"{ratio:.2f}", f"{a:.2f} to {c:.2f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "roofline.json").write_text(
        json.dumps({"command": command(), "machine": about, "weights": arguments.weights, "rows": rows}, indent=1) + "\n"
    )
    (arguments.out / "roofline.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
