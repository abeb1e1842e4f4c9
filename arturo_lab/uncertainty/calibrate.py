"""Every method on the same test images; finished outcomes are stored and not computed again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arturo_lab.errors import RunError
from arturo_lab.runs import atomic
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import RecordError, read_object
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.train import cpu_threads
from arturo_lab.uncertainty.images import Images, Trained, Work
from arturo_lab.uncertainty.methods import METHODS
from arturo_lab.uncertainty.scores import Bin, Scores

APART = 1000
FORMAT = 2  # of a method's file; another number and it is computed again


@dataclass(frozen=True)
class Outcome:
    """The outcome of one method."""

    method: str
    seed: int
    scores: Scores
    chosen: dict[str, Any]  # on held-out images
    networks: int
    passes: int
    train_seconds: float
    seconds: float  # of tuning and predicting

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        scores = {**values["scores"], "bins": tuple(Bin(**each) for each in values["scores"]["bins"])}
        return cls(**{**values, "scores": Scores(**scores)})


def configs_of(method: str, seed: int, optimizers: dict[str, str], make: Callable[[str, int], RunConfig]) -> list[RunConfig]:
    """The trainings of a method. Members of an ensemble are ``APART`` seeds apart: ensembles of other seeds share none."""
    entry = METHODS[method]
    optimizer = optimizers.get(entry.optimizer, entry.optimizer)
    return [make(optimizer, seed + APART * i) for i in range(entry.networks)]


def evaluate(
    method: str, configs: Sequence[RunConfig], images: Images, work: Work, sizes: dict[str, Any], out: Path
) -> tuple[Outcome, bool]:
    """The outcome, and whether it was already stored: ``OUT/TASK/calibrate/METHOD-HASH.json``."""
    effort = dataclasses.asdict(work)
    if not METHODS[method].tuned:
        effort = {name: effort[name] for name in ("samples", "seed")}
    what = {
        "format": FORMAT,
        "method": method,
        "configs": [config.key for config in configs],
        "work": effort,
        "sizes": sizes,
    }
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    path = out / configs[0].task / "calibrate" / f"{method}-{key}.json"
    if path.exists():
        try:
            return Outcome.from_json(read_object(path)["outcome"]), True
        except (RecordError, KeyError, TypeError) as error:
            raise RunError(f"{path}: not what this version writes ({error}); remove it to compute it again") from error
    start = time.perf_counter()
    with cpu_threads(configs[0].machine.threads or TASKS[configs[0].task].threads):
        trained = [Trained.load(config, out) for config in configs]
        predictor, chosen = METHODS[method].make(trained, images, work)
        elsewhere = None if images.elsewhere is None else predictor(images.elsewhere).numpy()
        scores = Scores.of(predictor(images.test_images).numpy(), images.test_labels.numpy(), elsewhere)
    results = [read_object(out / config.folder / "result.json") for config in configs]
    outcome = Outcome(
        method,
        work.seed,
        scores,
        chosen,
        len(configs),
        METHODS[method].passes(work.samples),
        sum(result["seconds"] for result in results),
        time.perf_counter() - start,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(path, {"what": what, "outcome": outcome.to_json()})
    return outcome, False
