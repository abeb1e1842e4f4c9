"""Wall-clock time to a fixed validation loss: AdamW, its lr tuned and with a warm-up, against AdaArturo as it comes.

    python benchmarks/time_to_target.py --out results --threads 2

All trainings of a problem run in one process and take turns of some steps each, so that other load on the machine affects all
alike. The clock runs while a network trains and stops while it is evaluated, on a sixth of the training examples that is held
out. Examples are drawn with replacement. Both optimizers use a cosine to 0. AdamW gets a warm-up over a tenth of its steps
and, out of several, the lr with the lowest median validation loss at the end; that loss is the target. AdaArturo gets its
defaults and no warm-up. Times are medians over the seeds; a seed that never reaches the target counts as infinite. They are
compared with all of AdamW's training, since AdamW is at the target when it ends. Problems that OUT has from earlier commands
stay in the table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from machine import command, load, machine, machine_line
from rich.progress import track
from time_plot import draw
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from arturo import AdaArturo
from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tasks.task import Task
from arturo_lab.training.batches import Batches
from arturo_lab.training.train import evaluate

HELD_OUT = "1/6"
WARM_UP = 0.1  # of AdamW's steps


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )  # fmt: skip


PROBLEMS: dict[str, Callable[[], Task]] = {
    "byte-transformer": lambda: TASKS["byte-transformer"],
    "small-resnet": lambda: TASKS["fmnist-small-resnet"],
    "cifar10-cnn": lambda: TASKS["cifar10-cnn-short"],
    "mlp": lambda: replace(TASKS["fmnist-small-resnet"], title="Fashion-MNIST (12,000), MLP", model=mlp, batch_size=64),
}


@dataclass
class Training:
    """One contender with one seed. ``curve`` has (steps, seconds, validation loss)."""

    task: Task
    data: Examples
    optimizer: Optimizer
    model: nn.Module
    seed: int
    steps: int
    warm_up: int
    done: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        drawn = replace(self.task, epoch_steps=1, replacement=True)
        self.batches = iter(Batches(drawn, self.data, 1000 + self.seed))
        self.lr = self.optimizer.param_groups[0]["lr"]

    def factor(self) -> float:
        """Of lr: up along a line, then down along half a cosine."""
        if self.done < self.warm_up:
            return (self.done + 1) / self.warm_up
        share = (self.done - self.warm_up) / max(self.steps - self.warm_up, 1)
        return 0.5 * (1 + math.cos(math.pi * share))

    def train(self, steps: int) -> None:
        """Some more steps, then an evaluation."""
        steps = min(steps, self.steps - self.done)
        if steps == 0:
            return
        self.model.train()
        start = time.perf_counter()
        for _ in range(steps):
            inputs, targets = next(self.batches)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * self.factor()
            self.optimizer.zero_grad()
            self.task.loss(self.model(inputs), targets).backward()
            self.optimizer.step()
            self.done += 1
        self.seconds += time.perf_counter() - start
        loss = evaluate(self.model, self.data.test_inputs, self.data.test_targets, self.task)["loss"]
        self.curve.append((self.done, self.seconds, loss))

    def reached(self, target: float) -> tuple[float, float]:
        """Steps and seconds at the first evaluation at or below the target; infinite if reached is none."""
        return next(((float(step), seconds) for step, seconds, loss in self.curve if loss <= target), (math.inf, math.inf))


def contenders(rates: list[float]) -> dict[str, tuple[Callable[[list[Tensor]], Optimizer], float]]:
    """How to make each, and which share of its steps warms up."""
    tuned = {f"adamw {lr:g}": (lambda p, lr=lr: AdamW(p, lr=lr, fused=True), WARM_UP) for lr in rates}
    return {**tuned, "adaarturo": (AdaArturo, 0.0), "adaarturo diagonal": (lambda p: AdaArturo(p, covariance="diagonal"), 0.0)}


def measure(task: Task, arguments: argparse.Namespace) -> dict[str, Any]:
    """All trainings of one problem in turns."""
    data = loading.load(task.data).fold(HELD_OUT)
    steps = arguments.steps or task.epochs * task.steps(len(data), task.batch_size)
    trainings: dict[str, list[Training]] = {}
    for name, (make, warm_up) in contenders(arguments.rates).items():
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            model = task.model()
            optimizer = make(list(model.parameters()))
            trainings.setdefault(name, []).append(Training(task, data, optimizer, model, seed, steps, round(warm_up * steps)))
    everyone = [training for some in trainings.values() for training in some]
    for turn in track(range(math.ceil(steps / arguments.every)), description=task.title, transient=True):
        first = turn % len(everyone)
        for training in everyone[first:] + everyone[:first]:
            training.train(arguments.every)
    ends = {name: statistics.median(x.curve[-1][2] for x in some) for name, some in trainings.items()}
    best = min((name for name in ends if name.startswith("adamw")), key=ends.__getitem__)
    target = ends[best]
    rows = {name: summary(some, target) for name, some in trainings.items()}
    return {"title": task.title, "steps": steps, "best": best, "target": target, "contenders": rows}


def summary(trainings: list[Training], target: float) -> dict[str, Any]:
    """Medians over the seeds, and every curve."""
    reached = [x.reached(target) for x in trainings]
    return {
        "final": statistics.median(x.curve[-1][2] for x in trainings),
        "seconds": statistics.median(x.seconds for x in trainings),
        "steps_to_target": finite(statistics.median(steps for steps, _ in reached)),
        "seconds_to_target": finite(statistics.median(seconds for _, seconds in reached)),
        "curves": [x.curve for x in trainings],
    }


def finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def report(results: dict[str, Any]) -> str:
    lines = [
        "# Time to target", "",
        "Medians over seeds. The target is the validation loss that AdamW ends at with the best of its lr; ratios are to the "
        "time of that whole training.",
    ]  # fmt: skip
    for problem in results["problems"].values():
        reference = problem["contenders"][problem["best"]]["seconds"]
        lines += [
            "", f"### {problem['title']}: {problem['steps']} steps, target {problem['target']:.4f} ({problem['best']})", "",
            f"`{problem['command']}`; {problem['seeds']} seeds; {machine_line(problem['machine'])}.", "",
            "| | final validation loss | s in all | seeds that reach the target | steps to it | s to it | x AdamW's s in all |",
            "|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for name, row in problem["contenders"].items():
            reached = row["seconds_to_target"] is not None
            there = sum(any(loss <= problem["target"] for _, _, loss in curve) for curve in row["curves"])
            cells = (
                name, f"{row['final']:.4f}", f"{row['seconds']:.1f}", f"{there} of {len(row['curves'])}",
                f"{row['steps_to_target']:.0f}" if reached else "–", f"{row['seconds_to_target']:.1f}" if reached else "–",
                f"{row['seconds_to_target'] / reference:.2f}" if reached else "–",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(results: dict[str, Any], out: Path) -> None:
    (out / "time_to_target.md").write_text(report(results))
    draw(results, out / "time_to_target.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/time_to_target"), help="folder for time_to_target.json, .md, .png"
    )
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2], help="lr that AdamW may choose from")
    parser.add_argument("--steps", type=int, help="of each training (as many as the task has)")
    parser.add_argument("--every", type=int, default=25, help="steps between two evaluations, and of a turn")
    parser.add_argument("--report", action="store_true", help="only write table and figure from the rows in OUT")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = arguments.out / "time_to_target.json"
    results: dict[str, Any] = json.loads(rows.read_text()) if rows.exists() else {"problems": {}}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in () if arguments.report else arguments.problems:
        here = machine()
        measured = measure(PROBLEMS[name](), arguments)
        about = {"command": command(), "machine": {**here, "load_after": load()}, "seeds": arguments.seeds}
        results["problems"][name] = {**measured, **about}
        rows.write_text(json.dumps(results, separators=(",", ":")) + "\n")
        write(results, arguments.out)
    if arguments.report:
        write(results, arguments.out)
    print(report(results))


if __name__ == "__main__":
    main()
