"""External dashboards. metrics.jsonl is the record; these get copies of it.

All runs of an ``--out`` log to one place there and need no network: TensorBoard to ``tensorboard/TASK/RUN/``, Weights & Biases
(offline, to be synced by ``wandb sync``) to ``wandb/``, MLflow to ``mlflow.db``.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arturo_lab.errors import ConfigError
from arturo_lab.registry import Registry
from arturo_lab.runs.lock import Locked, locked
from arturo_lab.runs.run import RunFolder
from arturo_lab.training.epoch import EpochMetrics, StepMetrics, as_row


class Logger(Protocol):
    """What a training reports to a dashboard."""

    def on_step(self, metrics: StepMetrics) -> None: ...

    def on_epoch(self, metrics: EpochMetrics) -> None: ...

    def close(self, status: str) -> None:
        """``status`` is that of result.json, or "interrupted"."""


class TensorBoard:
    """``tensorboard --logdir OUT/tensorboard``: ``epoch/...`` over epochs, ``step/...`` over steps."""

    def __init__(self, run: RunFolder, root: Path) -> None:
        _import("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.make: Callable[..., Any] = SummaryWriter
        self.folder = str(root / "tensorboard" / run.config.folder)
        self.writer: Any = None

    def _add(self, kind: str, row: dict[str, Any], x: int) -> None:
        if self.writer is None:  # an earlier process may have written steps beyond its last checkpoint: they go
            self.writer = self.make(self.folder, purge_step=x if kind == "step" else None)
        for name, value in row.items():
            if value is not None and name not in ("epoch", "step"):
                self.writer.add_scalar(f"{kind}/{name}", value, x)

    def on_step(self, metrics: StepMetrics) -> None:
        self._add("step", as_row(metrics), metrics.step)

    def on_epoch(self, metrics: EpochMetrics) -> None:
        self._add("epoch", as_row(metrics), metrics.epoch)

    def close(self, status: str) -> None:
        if self.writer is not None:
            self.writer.close()


class WeightsAndBiases:
    """An offline run under the id of the config, so that a resumed training is one run after ``wandb sync``."""

    def __init__(self, run: RunFolder, root: Path) -> None:
        self.wandb = wandb = _import("wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "arturo"),
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(root),
            id=run.config.key,
            name=f"{run.config.task}/{run.config.name}",
            config=run.config.to_json(),
            resume="allow" if run.started else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run.define_metric("step/*", step_metric="step/step")
        self.run.define_metric("epoch/*", step_metric="epoch/epoch")

    def _log(self, kind: str, row: dict[str, Any]) -> None:
        self.run.log({f"{kind}/{name}": value for name, value in row.items() if value is not None})

    def on_step(self, metrics: StepMetrics) -> None:
        self._log("step", as_row(metrics))

    def on_epoch(self, metrics: EpochMetrics) -> None:
        self._log("epoch", as_row(metrics))

    def close(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "finished" else 1)
        self.wandb.teardown()  # ends its service: only then is the file whole, whatever comes after in this process


class Mlflow:
    """``mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db``: an experiment per task. Epochs only: a transaction each."""

    def __init__(self, run: RunFolder, root: Path) -> None:
        mlflow = _import("mlflow")
        _import("alembic")  # what MLflow keeps its databases with
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        folder, name = root.absolute(), run.config.name
        folder.mkdir(parents=True, exist_ok=True)
        with waiting_for(folder / ".mlflow.lock"):  # two processes that create the tables spoil each other's
            self.client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
            known = self.client.get_experiment_by_name(run.config.task)
            experiment = known.experiment_id if known is not None else None
            if experiment is None:
                artifacts = (folder / "mlflow").as_uri()
                experiment = self.client.create_experiment(run.config.task, artifact_location=artifacts)
            earlier = self.client.search_runs([experiment], filter_string=f"attributes.run_name = '{name}'")
            if earlier:
                self.id = earlier[0].info.run_id
                self.client.update_run(self.id, status="RUNNING")
                return
            self.id = self.client.create_run(experiment, run_name=name).info.run_id
            config = run.config.to_json()
            for key, value in {**config.pop("settings"), **config}.items():
                self.client.log_param(self.id, key, value)

    def on_step(self, metrics: StepMetrics) -> None:
        pass

    def on_epoch(self, metrics: EpochMetrics) -> None:
        now = int(1000 * time.time())
        rows = {name: value for name, value in as_row(metrics).items() if value is not None and name != "epoch"}
        metric = _import("mlflow.entities").Metric
        self.client.log_batch(self.id, metrics=[metric(name, value, now, metrics.epoch) for name, value in rows.items()])

    def close(self, status: str) -> None:
        ended = {"finished": "FINISHED", "diverged": "FAILED"}.get(status, "KILLED")
        self.client.set_tag(self.id, "status", status)
        self.client.set_terminated(self.id, status=ended)


LOGGERS: Registry[Callable[[RunFolder, Path], Logger]] = Registry(
    "log", {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": Mlflow}
)


@dataclass(frozen=True)
class Logging:
    """Where the runs of a command log to."""

    names: tuple[str, ...]
    root: Path

    @contextmanager
    def of(self, run: RunFolder) -> Iterator[list[Logger]]:
        """The loggers of a run, told at the end how it ended."""
        loggers: list[Logger] = []
        try:
            for name in dict.fromkeys(self.names):
                loggers.append(LOGGERS[name](run, self.root))
            yield loggers
        finally:
            status = "interrupted" if run.result is None else str(run.result["status"])
            for logger in loggers:
                logger.close(status)


def chosen(names: Sequence[str], root: Path) -> Logging | None:
    return Logging(tuple(names), root) if names else None


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold a lock inside the block, as soon as nobody else does."""
    while True:
        try:
            with locked(path):
                yield
                return
        except Locked:
            time.sleep(0.1)


def check(names: Sequence[str]) -> None:
    """Complain about an unknown logger or a missing package before anything is trained."""
    for name in names:
        _ = LOGGERS[name]
        _import(name)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"log: {name} is not installed: pip install 'arturo[loggers]' ({error})") from error
