"""What a comparison found: a table for the terminal and files for other programs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from arturo.lab.compare import Comparison, Estimate, Run
from arturo.lab.figure import figure
from arturo.lab.optimizers import OPTIMIZERS
from arturo.lab.tasks import TASKS


def table(comparison: Comparison) -> Table:
    """One row per optimizer; the best mean of a column in bold."""
    accuracy = {name: comparison.final(name, "test_accuracy") for name in comparison.optimizers}
    loss = {name: comparison.final(name, "test_loss") for name in comparison.optimizers}
    seconds = {name: comparison.seconds_per_epoch(name) for name in comparison.optimizers}
    best_accuracy = max(estimate.mean for estimate in accuracy.values())
    best_loss = np.nanmin([estimate.mean for estimate in loss.values()], initial=np.inf)  # NaN: it diverged

    result = Table(
        title=f"{TASKS[comparison.task].title}, after epoch {comparison.epochs}",
        caption=comparison.basis,
        title_style="bold",
    )
    result.add_column("optimizer")
    for heading in ("test accuracy [%]", "test loss", "time per epoch"):
        result.add_column(heading, justify="right")
    for name in comparison.optimizers:
        result.add_row(
            OPTIMIZERS[name].label,
            emphasised(show(accuracy[name], scale=100, digits=2), accuracy[name].mean == best_accuracy),
            emphasised(show(loss[name], scale=1, digits=4), loss[name].mean == best_loss),
            f"{1000 * seconds[name]:.0f} ms" if seconds[name] < 1 else f"{seconds[name]:.1f} s",
        )
    return result


def show(estimate: Estimate, scale: float, digits: int) -> str:
    """A mean with its error, both to ``digits`` places.

    Example:
        >>> show(Estimate(0.9774, 0.0021), scale=100, digits=2)
        '97.74 ± 0.21'
        >>> show(Estimate(0.9774, None), scale=100, digits=2)
        '97.74'
    """
    mean = f"{scale * estimate.mean:.{digits}f}"
    return mean if estimate.doubled_error is None else f"{mean} ± {scale * estimate.doubled_error:.{digits}f}"


def emphasised(text: str, yes: bool) -> str:
    return f"[bold]{text}[/]" if yes else text


def write(comparison: Comparison, folder: Path) -> Path:
    """Write metrics.jsonl (a line per epoch), summary.json and figure.png; return the figure's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_metrics(comparison.runs, folder / "metrics.jsonl")
    replace(folder / "summary.json", (json.dumps(summary(comparison), indent=2) + "\n").encode())
    picture = folder / "figure.png"
    partial = picture.with_suffix(".partial.png")
    figure(comparison).savefig(partial, dpi=160)
    os.replace(partial, picture)
    return picture


def write_metrics(runs: Sequence[Run], path: Path) -> None:
    """One JSON object per run and epoch, the run's config in each, so that a line stands for itself."""
    rows = [
        dataclasses.asdict(run.config) | {key: finite(value) for key, value in dataclasses.asdict(metrics).items()}
        for run in runs
        for metrics in run.epochs
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def summary(comparison: Comparison) -> dict[str, Any]:
    """The table as data, with the command and the versions behind it."""
    return {
        "command": comparison.command,
        "task": comparison.task,
        "epochs": comparison.epochs,
        "seeds": comparison.seeds,
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": TASKS[comparison.task].threads or torch.get_num_threads(),
            "machine": platform.machine(),
        },
        "optimizers": {
            name: {
                "test_accuracy": as_json(comparison.final(name, "test_accuracy")),
                "test_loss": as_json(comparison.final(name, "test_loss")),
                "seconds_per_epoch": comparison.seconds_per_epoch(name),
            }
            for name in comparison.optimizers
        },
    }


def as_json(estimate: Estimate) -> dict[str, Any]:
    return {key: finite(value) for key, value in dataclasses.asdict(estimate).items()}


def finite(value: Any) -> Any:
    """JSON has no NaN: the loss of a diverged run is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace(path: Path, content: bytes) -> None:
    """Write in one go: a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
