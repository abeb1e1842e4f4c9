"""The end of a search: the winner is tested, once, and everything is written down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from arturo.lab.config_file import ConfigFile, read_config_file
from arturo.lab.environment import environment
from arturo.lab.errors import ConfigError
from arturo.lab.tuning.outcome import Row, edges, estimate, spread
from arturo.lab.tuning.protocols import Search
from arturo.lab.tuning.trial import Trainer


def tested(search: Search, best: Row, seeds: int, trainer: Trainer, out: Path) -> dict[str, Any]:
    """Train the winner on all training images with the seeds 0, 1, ... and look at the test images: the only time."""
    settings = search.space.settings(best.params)
    judged = trainer([search.config(settings, seed, fold=None) for seed in range(seeds)], out)
    accuracies = [run.accuracy for run in judged]
    return {**estimate(accuracies), "accuracies": accuracies, "diverged": sum(run.diverged for run in judged)}


def tested_before(file: Path) -> dict[str, Any] | None:
    """Which values an earlier search with this result tested; None if none did."""
    if not file.exists():
        return None
    search = read_config_file(file).search
    return dict(search["params"]) if search.get("test") else None


def config_file(search: Search, rows: Sequence[Row], best: Row, command: str, test: dict[str, Any] | None) -> ConfigFile:
    """What ``arturo train TASK --config`` takes, and how it came about."""
    own = [row for row in rows if not row.crossed]
    identity, versions = search.identity(), {**environment(), "optuna": optuna.__version__}
    crossed = [{"from": row.slot.removeprefix("cross "), "score": row.score, "state": row.state} for row in rows if row.crossed]
    how = {
        "command": command,
        **{key: identity[key] for key in ("protocol", "folds", "seeds", "space")},
        "studies": len({row.study for row in own}),
        "trials": len(own),
        "pruned": sum(row.state == "pruned" for row in own),
        "diverged": sum(row.state == "diverged" for row in own),
        "seconds": round(sum(row.seconds for row in rows), 1),
        "params": best.params,
        "study": best.study,
        "trial": best.slot,
        "validation": estimate(best.scores),
        "edges": edges(search, best),
        "between_studies": spread(rows),
        "crossed": crossed,
        "test": test,
        "versions": {key: versions[key] for key in ("python", "torch", "numpy", "arturo", "optuna")},
    }
    settings = search.space.settings(best.params)
    return ConfigFile(search.optimizer, search.task, search.epochs, search.batch_size, search.subset, settings, how)


def winners_elsewhere(files: Sequence[Path], search: Search) -> dict[str, dict[str, float]]:
    """The values that won in other searches, by the slot each is to have here. They must be of this optimizer and space."""
    found: dict[str, dict[str, float]] = {}
    names = [d.name for d in search.space.dimensions]
    for file in files:
        there = read_config_file(file)
        how = there.search
        for key, theirs, ours in (
            ("optimizer", there.optimizer, search.optimizer),
            ("protocol", how.get("protocol"), search.protocol),
            ("values", sorted(how.get("params", {})), sorted(names)),
        ):
            if theirs != ours:
                raise ConfigError(f"cross: {key} of {file} is {theirs!r}, of this search {ours!r}")
        for dimension in search.space.dimensions:
            if not dimension.low <= how["params"][dimension.name] <= dimension.high:
                raise ConfigError(f"cross: {dimension.name} of {file} is outside of {dimension.low:g} to {dimension.high:g}")
        found[f"cross {there.task}"] = dict(how["params"])
    return found
