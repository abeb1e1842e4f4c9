"""The whole training step: forward, backward and optimizer on several networks, ours and peers against fused AdamW.

    python benchmarks/training_step.py --out results --threads 2

Each contender trains its own network, all with the same start. A round shows them one batch, each in turn, the next round
begins with the next of them; ratios are taken within a round. The optimizer's part is timed inside the step as well, so that
the ratio can also be computed from medians: forward and backward over all contenders, for which they are the same, plus the
contender's optimizer. That is the same quantity with less noise. A ratio of means has the steps in it that refresh bases, which
medians do not see; `arturo league` takes it from `results/league`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import CONTENDERS, REFERENCE, missing
from machine import command, load, machine, machine_line, quartiles
from rich.progress import track
from time_to_target import PROBLEMS
from torch import Tensor

from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.league.field import SECONDS as LEAGUE
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.task import Task
from arturo_lab.training.batches import Batches

WARM_UP = 12  # rounds that do not count: AdaArturo makes its bases in the first, and refreshes all at 2 and 5
NAMES = ("native", "ada-kronecker", "ada-diagonal", "soap", "shampoo", "muon", "adamw-fused")
OF_TASKS = {name: partial(TASKS.__getitem__, name) for name in ("fmnist-cnn", *LEAGUE)}
NETWORKS: dict[str, Callable[[], Task]] = {**OF_TASKS, **PROBLEMS}


def examples(task: Task) -> Examples:
    """The task's data, or random images in their place."""
    try:
        return loading.load(task.data)
    except FileNotFoundError:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (2000, 1, 28, 28), dtype=torch.uint8, generator=generator)
        labels = torch.randint(10, (2000,), generator=generator)
        return Examples("random images, as the data is not here", images, labels, images, labels, 10)


class Trainer:
    """A contender with its own network."""

    def __init__(self, name: str, task: Task) -> None:
        torch.manual_seed(0)
        self.contender, self.loss = CONTENDERS[name], task.loss
        self.model = task.model()
        with self.contender.around():
            self.optimizer = self.contender.make(list(self.model.parameters()))
        self.whole: list[float] = []  # seconds
        self.own: list[float] = []  # of these in the optimizer

    def train(self, inputs: Tensor, targets: Tensor) -> None:
        with self.contender.around():
            start = time.perf_counter()
            self.optimizer.zero_grad()
            self.loss(self.model(inputs), targets).backward()
            before = time.perf_counter()
            self.optimizer.step()
            end = time.perf_counter()
        self.whole.append(end - start)
        self.own.append(end - before)


def measure(task: Task, names: list[str], rounds: int) -> dict[str, Any]:
    """Interleaved training; what each contender took, and its ratios to the reference."""
    data = examples(task)
    stream = islice(Batches(replace(task, epoch_steps=1, replacement=True), data, seed=0), rounds + WARM_UP)
    trainers = {name: Trainer(name, task) for name in names}
    order = list(trainers.values())
    for number, batch in enumerate(track(stream, description=task.title, total=rounds + WARM_UP, transient=True)):
        first = number % len(order)
        for trainer in order[first:] + order[:first]:
            trainer.train(*batch)
    whole = {name: np.array(trainer.whole[WARM_UP:]) for name, trainer in trainers.items()}
    own = {name: np.array(trainer.own[WARM_UP:]) for name, trainer in trainers.items()}
    shared = float(np.median(np.concatenate([whole[name] - own[name] for name in names])))
    rows = {
        name: {
            "title": CONTENDERS[name].title,
            "ms": quartiles(1e3 * whole[name]),
            "optimizer_ms": quartiles(1e3 * own[name]),
            "worst_over_median": float(own[name].max() / np.median(own[name])),
            "ratio_per_round": quartiles(whole[name] / whole[REFERENCE]),
            "ratio_of_parts": float((shared + np.median(own[name])) / (shared + np.median(own[REFERENCE]))),
            "ratio_of_means": float((shared + own[name].mean()) / (shared + own[REFERENCE].mean())),
        }
        for name in names
    }
    numbers = {"batch": task.batch_size, "rounds": rounds, "forward_and_backward_ms": 1e3 * shared}
    return {"title": task.title, "examples": data.name, **numbers, "contenders": rows}


def report(results: dict[str, Any]) -> str:
    lines = ["# The whole training step", "", f"`{results['command']}`", "", f"{machine_line(results['machine'])}."]
    for network in results["networks"].values():
        lines += [
            "",
            f"### {network['title']}: batch {network['batch']}, {network['examples']}, {network['rounds']} rounds, forward and "
            f"backward {network['forward_and_backward_ms']:.1f} ms",
            "",
            "| | ms per training step | quartiles | optimizer, ms | its worst / median | x AdamW per round | quartiles "
            "| from the parts | from means |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in network["contenders"].values():
            low, median, high = row["ms"]
            a, ratio, b = row["ratio_per_round"]
            cells = (
                row["title"], f"{median:.1f}", f"{low:.1f} to {high:.1f}", f"{row['optimizer_ms'][1]:.2f}",
                f"{row['worst_over_median']:.1f}", f"{ratio:.3f}", f"{a:.3f} to {b:.3f}", f"{row['ratio_of_parts']:.3f}",
                f"{row['ratio_of_means']:.3f}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\nNot measured: {CONTENDERS[name].title}, because {reason}." for name, reason in results["skipped"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/training_step"), help="folder for training_step.json and .md")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(NAMES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    skipped = {name: reason for name in arguments.contenders if (reason := missing(name))}
    names = [name for name in arguments.contenders if name != REFERENCE and name not in skipped]
    results: dict[str, Any] = {"command": command(), "machine": machine(), "skipped": skipped}
    everyone = [*names, REFERENCE]
    results["networks"] = {x: measure(NETWORKS[x](), everyone, arguments.rounds) for x in arguments.networks}
    results["machine"]["load_after"] = load()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "training_step.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "training_step.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
