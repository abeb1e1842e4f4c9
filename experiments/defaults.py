"""Do the defaults work? Train small problems of unlike kinds with AdaArturo untouched and with tuned baselines.

    python experiments/defaults.py --problems all --optimizers adamw adaarturo --seeds 3

Search on a fold of the training data: every `--set` is one variant of the optimizers that are not baselines, in place of
the untouched one,

    python experiments/defaults.py --split 1/5 --optimizers adaarturo --set block=64 --set block=256 --out search.jsonl
    python experiments/defaults.py --split 1/5 --optimizers variant --set rule=cap --set rule=0.5 --out search.jsonl

Finished runs are kept in `--out` and not repeated; several processes may share one file. `--report` prints the tables without
training. A run is known by its hyperparameters, so after a change of the algorithm use `--again`. AdamW warms up over
the first tenth of its steps, nobody else does; the schedule is the same for all. The best learning rate of a baseline is
chosen on the data it is reported on, which favours it. Needs the laboratory: `pip install -e '.[lab]'`.
"""

from __future__ import annotations

import argparse
import ast
import math
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import variants
from ledger import Cell, Ledger, Row, Variant, full_table, summary_table
from problems import Problem, problems
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from arturo import AdaArturo, Arturo
from arturo.core.bounds import KL_PER_WEIGHT
from arturo_lab.data.folds import Fold

WARMUP = {"warmup": 0.1}  # a part of the steps
GRIDS: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"lr": lr, **WARMUP} for lr in (1e-3, 3e-3, 1e-2)],  # torch's default first: the summary names it
    "sgd": [{"lr": lr, "momentum": 0.9} for lr in (0.01, 0.03, 0.1)],
    "arturo": [{}],
    "adaarturo": [{}],
    "variant": [{}],
}
BASELINES = ("adamw", "sgd")
Factor = Callable[[int], float]
# How a step is computed, not what it computes: no part of a run's identity.
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}


CLASSES: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "arturo": Arturo,
    "adaarturo": AdaArturo,
    "variant": variants.Variant,
}


def new_optimizer(name: str, parameters: Any, settings: dict[str, Any]) -> Optimizer:
    return CLASSES[name](parameters, **{key: value for key, value in settings.items() if key not in WARMUP})


def variant(name: str, settings: dict[str, Any]) -> Variant:
    """Resolve the defaults by building the optimizer once; a wrong setting fails here, before anything is trained."""
    defaults = new_optimizer(name, [nn.Parameter(torch.zeros(1))], settings).defaults
    plain = (bool, int, float, str, type(None))
    hyperparameters = {
        key: value if isinstance(value, plain) else list(value) if isinstance(value, tuple) else repr(value)
        for key, value in defaults.items()
        if key not in IMPLEMENTATION
    }
    if "kl_bound" in hyperparameters and hyperparameters["kl_bound"] is None:
        hyperparameters["kl_bound"] = f"{KL_PER_WEIGHT:g} per weight"  # what None means may change: other runs
    return Variant(name, settings, hyperparameters | {key: settings[key] for key in WARMUP if key in settings})


def lr_factor(schedule: str, warmup: float, steps: int) -> Factor:
    """Step -> factor on lr: linear over the part `warmup` of the steps, times a cosine that ends at zero."""
    rising = int(warmup * steps)

    def factor(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps)) if schedule == "cosine" else 1.0
        return cosine * min(1.0, (step + 1) / (rising + 1))

    return factor


def train(
    problem: Problem, run: Variant, factor: Factor, seed: int, on_step: Callable[[], None], loss_scale: float = 1.0
) -> Row:
    """One run from start to evaluation; a loss that is not finite ends it at once."""
    model = problem.build(seed)
    optimizer = new_optimizer(run.optimizer, model.parameters(), run.settings)
    scheduler = LambdaLR(optimizer, factor)
    torch.manual_seed(seed)  # whatever the optimizer drew: dropout is the same for all
    losses: list[float] = []
    diverged_at = None
    start, cpu_start, stepping = time.perf_counter(), time.process_time(), 0.0
    for step, (x, y) in zip(range(problem.steps), problem.batches(seed), strict=False):
        loss = problem.loss(model, x, y)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            diverged_at = step
            losses.pop()
            break
        optimizer.zero_grad()
        (loss * loss_scale).backward()
        before = time.perf_counter()
        optimizer.step()
        stepping += time.perf_counter() - before
        scheduler.step()
        on_step()
    metrics = problem.evaluate(model)
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        # A network whose last step broke it has no metric either; JSON has no NaN.
        "metrics": {k: v if diverged_at is None and math.isfinite(v) else None for k, v in metrics.items()},
        "diverged_at": diverged_at,
        "train_loss": tenths(losses),
        "seconds": round(time.perf_counter() - start, 2),
        "step_seconds": round(stepping, 2),
        "cpu_seconds": round(time.process_time() - cpu_start, 2),
        "environment": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
    }


def shortened(problem: Problem, part: float) -> Problem:
    return replace(problem, steps=round(part * problem.steps), seconds=part * problem.seconds)


def tenths(losses: list[float]) -> list[float]:
    """The mean over each tenth of the run: enough to see how it went."""
    bounds = [len(losses) * i // 10 for i in range(11)]
    parts = [losses[a:b] for a, b in pairwise(bounds) if b > a]
    return [round(sum(part) / len(part), 5) for part in parts]


def config_of(problem: Problem, run: Variant, arguments: argparse.Namespace, seed: int) -> Row:
    return {
        "problem": problem.name,
        "steps": problem.steps,
        "optimizer": run.optimizer,
        "hyperparameters": run.hyperparameters,
        "split": arguments.split,
        "schedule": arguments.schedule,
        "loss_scale": arguments.loss_scale,
        "seed": seed,
    }


def parse_settings(words: list[str]) -> dict[str, Any]:
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {word}: expected KEY=VALUE")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = value  # a bare word, such as dual=bisection
    return settings


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = problems("test")
    parser.add_argument("--problems", nargs="+", default=["all"], choices=["all", *every], metavar="NAME")
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "adaarturo"], choices=list(GRIDS))
    parser.add_argument("--set", nargs="+", action="append", default=[], metavar="KEY=VALUE", help="a variant")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="run seeds 0 to N - 1")
    parser.add_argument("--schedule", choices=["cosine", "constant"], default="cosine")
    parser.add_argument(
        "--split",
        default="test",
        metavar="test|k/K",
        help="evaluate on the test set, or on a fold (with --report any that has rows)",
    )
    parser.add_argument("--loss-scale", type=float, default=1.0, metavar="X", help="multiply the loss by X before backward()")
    parser.add_argument("--length", type=float, default=1.0, metavar="X", help="train for this part of a problem's steps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/adaptive/defaults.jsonl"))
    parser.add_argument("--again", action="store_true", help="repeat finished runs; the newer line counts")
    parser.add_argument("--report", action="store_true", help="train nothing, print what there is")
    arguments = parser.parse_args()
    arguments.problems = list(every) if "all" in arguments.problems else list(dict.fromkeys(arguments.problems))
    try:
        if arguments.split != "test" and not arguments.report:
            Fold.parse(arguments.split)
        named = [parse_settings(words) for words in arguments.set]
        grids = GRIDS | ({name: named for name in GRIDS if name not in BASELINES} if named else {})
        arguments.variants = [variant(name, settings) for name in arguments.optimizers for settings in grids[name]]
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    ledger = Ledger(arguments.out)
    every = {name: shortened(problem, arguments.length) for name, problem in problems(arguments.split).items()}
    cells = [(every[name], run) for name in arguments.problems for run in arguments.variants]
    # Seeds outermost: an interrupted comparison has every variant on the same seeds.
    jobs = [(problem, run, seed) for seed in range(arguments.seeds) for problem, run in cells]

    def config(problem: Problem, run: Variant, seed: int) -> Row:
        return config_of(problem, run, arguments, seed)

    if not arguments.report:
        done = {} if arguments.again else ledger.rows()
        run_all([job for job in jobs if ledger.key(config(*job)) not in done], ledger, config, arguments)
    rows = ledger.rows()
    table: dict[str, list[Cell]] = {}
    for problem, run in cells:
        keys = [ledger.key(config(problem, run, seed)) for seed in range(arguments.seeds)]
        found = [rows[key] for key in keys if key in rows]
        values = [row["metrics"][problem.metric] for row in found]
        table.setdefault(problem.name, []).append(Cell(run, problem.metric, values, found))
    print(
        f"\nMean ± standard deviation over up to {arguments.seeds} seeds; {arguments.split}, schedule {arguments.schedule}.\n"
    )
    print(summary_table(table), full_table(table), sep="\n\n")


def run_all(
    jobs: list[tuple[Problem, Variant, int]],
    ledger: Ledger,
    config: Callable[[Problem, Variant, int], Row],
    arguments: argparse.Namespace,
) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        # In seconds that AdamW would need, so that the remaining time is right although the problems differ twentyfold.
        overall = progress.add_task(f"{len(jobs)} runs", total=round(sum(problem.seconds for problem, _, _ in jobs)))
        for problem, run, seed in jobs:
            name = f"{problem.name} {run.optimizer} {run.label} seed {seed}"
            row_config = config(problem, run, seed)
            if not arguments.again and ledger.key(row_config) in ledger.rows():  # another process was faster
                progress.advance(overall, problem.seconds)
                continue
            bar = progress.add_task(name, total=problem.steps)

            def on_step(bar: Any = bar, share: float = problem.seconds / problem.steps) -> None:
                progress.advance(bar)
                progress.advance(overall, share)

            factor = lr_factor(arguments.schedule, run.settings.get("warmup", 0.0), problem.steps)
            trained = train(problem, run, factor, seed, on_step, arguments.loss_scale)
            row = {"config": row_config, "settings": run.settings} | trained
            ledger.append(row)
            progress.remove_task(bar)
            progress.console.print(f"{name}: {row['metrics']} in {row['seconds']:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
