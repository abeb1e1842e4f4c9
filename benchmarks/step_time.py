"""The time of one step: Arturo's kernels, AdamW's and SGD, and what the memory's bandwidth allows.

    python benchmarks/step_time.py --out results --threads 2

All contenders run in one process, in turns: a round gives each one turn, the next round begins with the next of them, so
that whatever else the machine does hits all alike. A turn is some ten milliseconds of consecutive steps (at least one), its
time the mean over them. Reported are medians and quartiles over the rounds, and the ratio to fused AdamW twice: of the medians,
and the median of the ratios within a round. Slow contenders take part in fewer rounds.

Weights are float32 on the CPU, with fixed gradients. "GB/s" is the memory traffic that the step needs at least (76 bytes per
weight for Arturo, 46 with bfloat16 state, 28 for AdamW, 20 for SGD with momentum) by its time. It is compared with two
bandwidths, the best of the run each: of ``copy_`` (8 bytes per entry; but a processor reads what it is about to overwrite, so
that really 12 go over the bus) and of the update ``x.add_(y)`` (12 bytes), which is what an optimizer does and is the line in
the plot. What fits a cache can exceed both.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from arturo import Arturo
from arturo.kernels import native
from arturo.lab import models, resnet

Shape = tuple[int, ...]
REFERENCE = "adamw-fused"  # what ratios are to
# What the plot shows: colours by Okabe and Ito, told apart without seeing red or green, and markers.
SWEEP = {
    "native": ("#0072B2", "o"),
    "native-bf16": ("#009E73", "s"),
    "eager": ("#D55E00", "^"),
    "adamw-fused": ("#000000", "D"),
}
TRAFFIC = {76: (0, (5, 2)), 28: (0, (1, 1.5))}  # bytes per weight, and the line's dashes
GREY = "#777777"
WARM_UP = 4  # steps: the first makes state, the second is the first ordinary one
FEWEST_ROUNDS = 5


@contextmanager
def without_native() -> Iterator[None]:
    """As where the extension was not built: ``fused=True`` then is the compiled kernel."""
    with mock.patch.object(native, "_library", None):
        yield


class Contender(NamedTuple):
    title: str
    make: Callable[[list[Tensor]], Optimizer]
    bytes: int  # memory traffic of a step, per float32 weight: what must be read and written at least
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # while it is made and steps


CONTENDERS = {
    "native": Contender("Arturo, native", Arturo, 76),
    "native-bf16": Contender("Arturo, native, bfloat16 state", lambda p: Arturo(p, state_dtype=torch.bfloat16), 46),
    "compiled": Contender("Arturo, compiled", lambda p: Arturo(p, fused=True), 76, without_native),
    "eager": Contender("Arturo, eager loop", lambda p: Arturo(p, foreach=False), 76),
    "foreach": Contender("Arturo, _foreach", lambda p: Arturo(p, foreach=True), 76),
    "adamw-fused": Contender("AdamW, fused", lambda p: AdamW(p, fused=True), 28),
    "adamw-foreach": Contender("AdamW, foreach", lambda p: AdamW(p, foreach=True), 28),
    "adamw-loop": Contender("AdamW, for-loop", lambda p: AdamW(p, foreach=False), 28),
    "sgd": Contender("SGD with momentum, foreach", lambda p: SGD(p, lr=1e-3, momentum=0.9, foreach=True), 20),
}


def missing(name: str) -> str | None:
    """Why a contender cannot take part, if it cannot."""
    if name.startswith("native") and not native.available():
        return "the C++ extension was not built"
    if name == "compiled":
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.zeros(1)
        try:
            with without_native():
                Arturo([p], lr=0.0, fused=True).step()  # makes state, compiles nothing
        except RuntimeError as error:
            return f"it cannot be had here ({error})"
    return None


def shapes_of(model: torch.nn.Module) -> list[Shape]:
    return [tuple(p.shape) for p in model.parameters()]


def size_of(shapes: Sequence[Shape]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


SHAPES: dict[str, Callable[[], list[Shape]]] = {
    "1x20M": lambda: [(20_000_000,)],
    "100x200k": lambda: [(200_000,)] * 100,
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
    runners = [Runner(name, shapes, gradients, effort) for name in names]
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
    if reference:
        row["ratio_of_medians"] = median / float(np.median(list(reference.values())))
        row["ratio_per_round"] = quartiles([t / reference[number] for number, t in runner.times.items()])
    if runner.passes:
        row["passes"] = float(np.mean(runner.passes))
    if runner.name == "compiled":
        row["compilation_s"] = runner.extra_start
    row["all_ms"] = [float(f"{1e3 * t:.5g}") for t in times]
    return row


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [float(x) for x in np.percentile(values, (25, 50, 75))]


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


def machine() -> dict[str, Any]:
    """What the numbers depend on, and nothing that names the machine."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": load(),
    }


def load() -> list[float] | None:
    """Average number of running processes over 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None


def command() -> str:
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def machine_line(found: dict[str, Any]) -> str:
    """The machine in one sentence."""
    return (
        f"{found['cpu']}, {plural(found['cores'], 'core')}, {plural(found['threads'], 'thread')}, torch {found['torch']}, "
        f"{found['system']}; "
        f"load average {found['load_before'][0] if found['load_before'] else '?'} before and "
        f"{found['load_after'][0] if found['load_after'] else '?'} after"
    )


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
            f"Compilation in the first {WARM_UP} steps: {spent:.1f} s (what was compiled for an earlier list serves again).",
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


def draw(results: dict[str, Any], path: Path) -> None:
    """Time per step against the number of weights, and the time that the traffic alone takes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sweep, speed = results["sweep"], max(results["gb_per_s"]["update"])
    weights = np.array([point["weights"] for point in sweep], dtype=float)
    ends = []
    figure, axes = plt.subplots(figsize=(7.6, 5.2), layout="constrained")
    for name, (color, marker) in SWEEP.items():
        if name not in sweep[-1]["contenders"]:
            continue
        low, median, high = np.array([point["contenders"][name]["ms"] for point in sweep]).T
        axes.fill_between(weights, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(weights, median, color=color, marker=marker, markersize=4, linewidth=1.6)
        ends.append((median[-1], CONTENDERS[name].title, color))
    lowest = min(point["contenders"][name]["ms"][0] for point in sweep for name in point["contenders"]) / 2
    for count, style in TRAFFIC.items():
        ms = 1e3 * count * weights[-1] / speed / 1e9
        start = weights[-1] * lowest / ms  # where the line enters the figure
        axes.plot([start, weights[-1]], [lowest, ms], color=GREY, linestyle=style, linewidth=1.2, zorder=1)
        ends.append((ms, f"{count} bytes per weight at {speed:.0f} GB/s", GREY))
    axes.set(xscale="log", yscale="log", xlabel="weights, in one tensor", ylabel="time per step (ms)", ylim=(lowest, None))
    axes.set_xlim(weights[0] / 1.5, weights[-1] * 1.2)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_ylim()
    line = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}
    for (y, text, color), place in zip(sorted(ends), spread([y for y, _, _ in ends], (high / low) ** (1 / 26)), strict=True):
        axes.annotate(
            text, (weights[-1], y), (weights[-1] * 1.5, place), color=color, va="center", fontsize=9,
            arrowprops={**line, "color": color}, annotation_clip=False,
        )  # fmt: skip
    threads, cpu = results["machine"]["threads"], results["machine"]["cpu"]
    title = f"One optimizer step, {plural(threads, 'thread')}, {cpu}; grey: the memory traffic alone"
    axes.set_title(title, fontsize=10, loc="left")
    figure.savefig(path, dpi=160)
    plt.close(figure)


def spread(values: Sequence[float], apart: float) -> list[float]:
    """Near the values, in rising order, each at least ``apart`` times the one below: where labels do not overlap."""
    up, down = sorted(values), sorted(values)
    for i in range(1, len(up)):
        up[i] = max(up[i], up[i - 1] * apart)
    for i in reversed(range(len(down) - 1)):
        down[i] = min(down[i], down[i + 1] / apart)
    return [math.sqrt(a * b) for a, b in zip(up, down, strict=True)]


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
