"""The end of a search: the winner is tested, once, and everything is written down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.config_file import ConfigFile, read_config_file
from arturo_lab.runs.environment import environment
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tuning.outcome import TrialRow, edges, estimate, spread
from arturo_lab.tuning.protocols import Search
from arturo_lab.tuning.trial import Trainer


def tested(search: Search, best: TrialRow, seeds: int, trainer: Trainer, out: Path) -> dict[str, Any]:
    """Train the winner on all training images with the seeds 0, 1, ... and look at the test images: the only time."""
    settings = search.space.settings(best.params)
    judged = trainer([search.config(settings, seed, fold=None) for seed in range(seeds)], out)
    metric = TASKS[search.task].metric
    values = [metric.score(run.score) for run in judged]
    lost = sum(run.diverged for run in judged)
    return {**estimate(values), "values": values, "diverged": lost, "params": best.params}


def tested_before(file: Path) -> dict[str, Any] | None:
    """The test that an earlier search with this result made, with the values it tested; None if there was none."""
    if not file.exists():
        return None
    search = read_config_file(file).search
    return {"params": search["params"], **search["test"]} if search.get("test") else None


def check_out(file: Path, search: Search) -> None:
    """A result of another search is not overwritten, nor is what was tested for it forgotten."""
    if not file.exists():
        return
    stored = read_config_file(file)
    for key, theirs in (("task", stored.task), ("optimizer", stored.optimizer), ("protocol", stored.search.get("protocol"))):
        if theirs != getattr(search, key):
            raise ConfigError(
                f"out: {file} holds another search ({key} is {theirs!r} there and {getattr(search, key)!r} here); "
                "choose another --out"
            )


def config_file(
    search: Search, rows: Sequence[TrialRow], best: TrialRow, command: str, test: dict[str, Any] | None, prune: bool
) -> ConfigFile:
    """What ``arturo train TASK --config`` takes, and how it came about."""
    own = [row for row in rows if not row.crossed]
    identity, versions = search.identity(), {**environment(), "optuna": optuna.__version__}
    crossed = [{"from": row.slot.split()[1], "score": row.score, "state": row.state} for row in rows if row.crossed]
    how = {
        "command": command,
        **{key: identity[key] for key in ("protocol", "folds", "seeds", "space")},
        "prune": prune,
        "studies": len({row.study for row in own}),
        "trials": len(own),
        "pruned": sum(row.state == "pruned" for row in own),
        "diverged": sum(row.state == "diverged" for row in own),
        "seconds": round(sum(row.seconds for row in rows), 1),
        "params": best.params,
        "study": best.study,
        "trial": best.slot,
        "metric": TASKS[search.task].metric.described(),
        "validation": estimate([TASKS[search.task].metric.score(score) for score in best.scores]),
        "edges": edges(search, best),
        "between_studies": spread(rows),
        "crossed": crossed,
        "test": test,
        "versions": {key: versions[key] for key in ("python", "torch", "numpy", "arturo", "optuna")},
    }
    settings = search.space.settings(best.params)
    share = search.share
    return ConfigFile(search.optimizer, search.task, share.epochs, share.batch_size, share.subset, settings, how)


def winners_elsewhere(files: Sequence[Path], search: Search) -> dict[str, dict[str, float]]:
    """The values that won in other searches, by the slot each is to have here. They must be of this optimizer and space.

    The slot is named after the task and the values, so that a search of that task with another winner gets another slot.
    """
    by_slot: dict[str, dict[str, float]] = {}
    tasks: dict[str | None, Path] = {search.task: Path("this search")}
    names = [d.name for d in search.space.dimensions]
    for file in files:
        if not file.is_file():
            raise ConfigError(f"cross: {file} does not exist; name what `arturo tune --out` wrote")
        stored = read_config_file(file)
        how = stored.search
        for key, theirs, ours in (
            ("optimizer", stored.optimizer, search.optimizer),
            ("protocol", how.get("protocol"), search.protocol),
            ("values", sorted(how.get("params", {})), sorted(names)),
        ):
            if theirs != ours:
                raise ConfigError(f"cross: {key} of {file} is {theirs!r}, of this search {ours!r}")
        for dimension in search.space.dimensions:
            if not dimension.low <= how["params"][dimension.name] <= dimension.high:
                raise ConfigError(f"cross: {dimension.name} of {file} is outside of {dimension.low:g} to {dimension.high:g}")
        if stored.task in tasks:
            raise ConfigError(f"cross: {file} is of {stored.task}, and so is {tasks[stored.task]}")
        tasks[stored.task] = file
        key = hashlib.sha256(json.dumps(how["params"], sort_keys=True).encode()).hexdigest()[:8]
        by_slot[f"cross {stored.task} {key}"] = dict(how["params"])
    return by_slot
