"""The time of one step: Arturo's kernels, AdamW's and SGD, and what the memory's bandwidth allows.

    python benchmarks/step_time.py --out results --threads 2

All contenders run in one process, in turns: a round gives each one turn, the next round begins with the next of them, so
that whatever else the machine does hits all alike. A turn is some ten milliseconds of consecutive steps (at least one), its
time the mean over them. Reported are medians and quartiles over the rounds, and the ratio to fused AdamW twice: of the medians,
and the median of the ratios within a round. Slow contenders take part in fewer rounds.

Weights are float32 on the CPU, with fixed gradients. "GB/s" is the memory traffic that the step needs at least (76 bytes per
weight for Arturo, 46 with bfloat16 state; 36 for AdaArturo on the diagonal, 28 with such state, 40 for its Kronecker form,
which makes products of matrices besides; 28 for AdamW, 20 for SGD with momentum) by its time. It is compared with two
bandwidths, the best of the run each: of ``copy_`` (8 bytes per entry; but a processor reads what it is about to overwrite, so
that really 12 go over the bus) and of the update ``x.add_(y)`` (12 bytes), which is what an optimizer does and is the line in
the plot. What fits a cache can exceed both. Peers that decompose whole sides of a matrix take part where these are short.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from contenders import CONTENDERS, REFERENCE, missing
from machine import command, load, machine, machine_line, plural, quartiles
from rich.console import Console
from rich.progress import Progress
from step_plot import SWEEP, draw
from torch import Tensor

from arturo import Arturo
from arturo_lab.tasks import models, resnet

Shape = tuple[int, ...]
WARM_UP = 4  # steps: the first makes state, the second is the first ordinary one
FEWEST_ROUNDS = 5


def shapes_of(model: torch.nn.Module) -> list[Shape]:
    return [tuple(p.shape) for p in model.parameters()]


def size_of(shapes: Sequence[Shape]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


SHAPES: dict[str, Callable[[], list[Shape]]] = {
    "1x20M": lambda: [(5000, 4000)],
    "100x200k": lambda: [(500, 400)] * 100,
    "resnet34": lambda: shapes_of(resnet.resnet34(num_classes=1000)),
    "fmnist-cnn": lambda: shapes_of(models.fashion_mnist_cnn()),
    "10000x100": lambda: [(100,)] * 10_000,
}


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int
    turn: float  # seconds of consecutive steps, at least one
    budget: float  # seconds per contender and list of shapes


class Runner:
    """One contender on parameters of its own; gradients are shared."""

    def __init__(self, name: str, shapes: Sequence[Shape], gradients: list[Tensor], effort: Effort) -> None:
        self.name, self.contender = name, CONTENDERS[name]
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.empty(shape).normal_(0, 0.05, generator=generator)) for shape in shapes]
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        with self.contender.around():
            self.optimizer = self.contender.make(params)
        warm = [self.run(1) for _ in range(WARM_UP)]
        self.extra_start = sum(warm) - len(warm) * min(warm)  # compilation, mostly, where there is any
        self.steps = max(1, round(effort.turn / min(warm)))
        turns = max(FEWEST_ROUNDS, int(effort.budget / (self.steps * min(warm))))
        taken = min(effort.rounds, turns)
        self.rounds = {i * effort.rounds // taken for i in range(taken)}
        self.times: dict[int, float] = {}
        self.passes: list[int] = []

    def run(self, steps: int) -> float:
        """Seconds per step."""
        step = self.optimizer.step
        with self.contender.around():
            start = time.perf_counter()
            for _ in range(steps):
                step()
            return (time.perf_counter() - start) / steps

    def take_turn(self, number: int) -> None:
        if number in self.rounds:
            self.times[number] = self.run(self.steps)
            if isinstance(self.optimizer, Arturo):
                self.passes.append(self.optimizer.last_step.evaluations + 1)


def measure(shapes: Sequence[Shape], names: Sequence[str], effort: Effort, advance: Callable[[], None]) -> dict[str, Any]:
    """Interleaved rounds of all contenders on one list of shapes."""
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.empty(shape).normal_(0, 1e-3, generator=generator) for shape in shapes]
    longest = max(max(shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else 1 for shape in shapes)
    fitting = [name for name in names if (limit := CONTENDERS[name].longest) is None or longest <= limit]
    runners = [Runner(name, shapes, gradients, effort) for name in fitting]
    gc.collect()
    gc.disable()
    try:
        for number in range(effort.rounds):
            first = number % len(runners)
            for runner in runners[first:] + runners[:first]:
                runner.take_turn(number)
            advance()
    finally:
        gc.enable()
    weights = size_of(shapes)
    reference = next((runner.times for runner in runners if runner.name == REFERENCE), {})
    found = {runner.name: summary(runner, reference, weights) for runner in runners}
    return {"tensors": len(shapes), "weights": weights, "contenders": found}


def summary(runner: Runner, reference: dict[int, float], weights: int) -> dict[str, Any]:
    times = list(runner.times.values())
    median = float(np.median(times))
    row: dict[str, Any] = {
        "title": runner.contender.title,
        "ms": quartiles([1e3 * t for t in times]),
        "rounds": len(times),
        "steps_per_turn": runner.steps,
        "bytes_per_weight": runner.contender.bytes,
        "gb_per_s": weights * runner.contender.bytes / median / 1e9,
    }
    row["worst_over_median"] = max(times) / median
    if reference:
        row["ratio_of_medians"] = median / float(np.median(list(reference.values())))
        row["ratio_per_round"] = quartiles([t / reference[number] for number, t in runner.times.items()])
    if runner.passes:
        row["passes"] = float(np.mean(runner.passes))
    if runner.name == "compiled":
        row["compilation_s"] = runner.extra_start
    row["all_ms"] = [float(f"{1e3 * t:.5g}") for t in times]
    return row


def bandwidth(entries: int, repetitions: int) -> dict[str, list[float]]:
    """GB/s of ``copy_`` and of ``add_`` on large tensors, the bytes of all reads and writes counted."""
    x, y = torch.ones(entries), torch.zeros(entries)
    kinds: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (8, lambda: x.copy_(y)),
        "update": (12, lambda: x.add_(y)),
    }
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(repetitions + 1):
        for kind, (count, function) in kinds.items():
            start = time.perf_counter()
            function()
            if number:  # the first ones touch new pages
                speeds[kind].append(count * entries / (time.perf_counter() - start) / 1e9)
    return speeds


def table(name: str, found: dict[str, Any], best: dict[str, float]) -> str:
    """The markdown table of one list of shapes."""
    lines = [
        f"### {name}: {found['weights']:,} weights in {plural(found['tensors'], 'tensor')}",
        "",
        "| | ms per step | quartiles | x fused AdamW | per round | quartiles | GB/s | of copy | of update | passes | rounds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["contenders"].values():
        low, median, high = row["ms"]
        ratios = ("", "", "")
        if "ratio_per_round" in row:
            a, b, c = row["ratio_per_round"]
            ratios = (f"{row['ratio_of_medians']:.2f}", f"{b:.2f}", f"{a:.2f} to {c:.2f}")
        shares = [f"{row['gb_per_s'] / best[kind]:.0%}" for kind in ("copy", "update")]
        passes = f"{row['passes']:.2f}" if "passes" in row else ""
        times = (f"{median:.4g}", f"{low:.4g} to {high:.4g}")
        cells = (row["title"], *times, *ratios, f"{row['gb_per_s']:.1f}", *shares, passes, str(row["rounds"]))
        lines.append(f"| {' | '.join(cells)} |")
    if "compilation_s" in found["contenders"].get("compiled", {}):
        spent = found["contenders"]["compiled"]["compilation_s"]
        lines += [
            "",
            f"Compilation in the first {WARM_UP} steps: {spent:.1f} s (graphs compiled for an earlier list are used again).",
        ]
    return "\n".join(lines)


def report(results: dict[str, Any]) -> str:
    """The whole report in markdown."""
    speeds = results["gb_per_s"]
    best = {kind: max(found) for kind, found in speeds.items()}
    lines = [
        "# The time of one step",
        "",
        f"`{results['command']}`",
        "",
        f"{machine_line(results['machine'])}. Bandwidth, best of {len(speeds['copy'])} (median): copy {best['copy']:.1f} "
        f"({np.median(speeds['copy']):.1f}) GB/s, update {best['update']:.1f} ({np.median(speeds['update']):.1f}) GB/s.",
    ]
    lines += [f"\nNot measured: {CONTENDERS[name].title}, because {reason}." for name, reason in results["skipped"].items()]
    lines += ["\n" + table(name, found, best) for name, found in results["shapes"].items()]
    return "\n".join(lines) + "\n"


def sweep_sizes(largest: int) -> list[int]:
    """1, 2, 5 times powers of ten, from a thousand on."""
    return [step * 10**power for power in range(3, 9) for step in (1, 2, 5) if step * 10**power <= largest]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/step_time"), help="folder for step_time.json, .md and .png")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, help="per list of shapes (30; quick: 5)")
    parser.add_argument("--turn", type=float, default=10.0, help="ms of consecutive steps per turn; 0: one step, caches cold")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="all (quick: fmnist-cnn)")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--sweep", type=int, help="largest number of weights in the plot (20 M; quick: 1 M; 0: no plot)")
    parser.add_argument("--quick", action="store_true", help="half a minute, to see that it works")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    quick = arguments.quick
    torch.set_num_threads(arguments.threads)
    effort = Effort(arguments.rounds or (5 if quick else 30), arguments.turn / 1e3, 0.5 if quick else 4.0)
    chosen = (["fmnist-cnn"] if quick else list(SHAPES)) if arguments.shapes is None else arguments.shapes
    skipped = {name: reason for name in arguments.contenders if (reason := missing(name))}
    names = [name for name in arguments.contenders if name not in skipped]
    largest = (1_000_000 if quick else 20_000_000) if arguments.sweep is None else arguments.sweep
    sizes = sweep_sizes(largest)
    in_sweep = [name for name in SWEEP if name in names]
    light = effort._replace(rounds=max(FEWEST_ROUNDS, effort.rounds // 2), budget=effort.budget / 4)
    results: dict[str, Any] = {"command": command(), "machine": machine(), "skipped": skipped}
    speeds: dict[str, list[float]] = {"copy": [], "update": []}
    shapes: dict[str, Any] = {}
    sweep: list[dict[str, Any]] = []
    # The bar is drawn between rounds only: a thread that redraws it would take time from the contenders.
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("", total=len(chosen) * effort.rounds + len(sizes) * light.rounds)

        def advance() -> None:
            progress.update(bar, advance=1, refresh=True)

        def gather_bandwidth() -> None:
            for kind, found in bandwidth(1 << (24 if quick else 26), 5).items():
                speeds[kind] += found

        for name in chosen:
            progress.update(bar, description=name, refresh=True)
            gather_bandwidth()
            shapes[name] = measure(SHAPES[name](), names, effort, advance)
        for size in sizes:
            progress.update(bar, description=f"1 x {size:,}", refresh=True)
            sweep.append(measure([(size,)], in_sweep, light, advance))
        gather_bandwidth()
    results["machine"]["load_after"] = load()
    results |= {"gb_per_s": speeds, "shapes": shapes, "sweep": sweep}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "step_time.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "step_time.md").write_text(report(results))
    if sweep and in_sweep:
        draw(results, arguments.out / "step_time.png")
    print(report(results))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cold:  # compilation is measured without what earlier runs have left
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cold
        main()
