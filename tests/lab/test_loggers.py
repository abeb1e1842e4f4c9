"""The loggers, with the real packages: what a training tells them can be read back, also after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from arturo_lab.data import loading
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record, read_run
from arturo_lab.runs.run import open_run
from arturo_lab.training.loggers import LOGGERS
from arturo_lab.training.train import train

DIGITS = loading.load("digits")
CONFIG = RunConfig.for_task("digits-mlp", "arturo", epochs=3, subset=64)


def logged(name: str, out: Path) -> Record:
    """Two processes' worth: stopped in the second epoch, then to the end."""
    asked = iter([False] * 3 + [True] + [False] * 9)
    for _ in range(2):
        with open_run(out, CONFIG) as folder:
            logger = LOGGERS[name](folder)
            try:
                train(CONFIG, DIGITS, logger.on_epoch, logger.on_step, run=folder, stop=lambda: next(asked))
                assert folder.result is not None
                logger.close(folder.result["status"])
            except KeyboardInterrupt:
                logger.close("interrupted")
    return read_run(folder.path)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = logged("tensorboard", tmp_path)
    events = EventAccumulator(str(record.folder / "tensorboard"))
    events.Reload()
    accuracies = events.Scalars("epoch/test_accuracy")
    assert [event.step for event in accuracies] == [1, 2, 3]
    assert [event.value for event in accuracies] == pytest.approx(record.series("test_accuracy"))
    assert [event.step for event in events.Scalars("step/loss")] == [1, 2, 3, 4, 5, 6]
    assert all(event.value > 0 for event in events.Scalars("step/eta"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # theirs
def test_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    record = logged("mlflow", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{record.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("digits-mlp")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.tags["status"] == "finished"
    assert run.data.params["optimizer"] == "arturo" and run.data.params["drift"] == "0.03"
    history = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert [(metric.step, metric.value) for metric in history] == list(
        zip(record.series("epoch"), record.series("test_accuracy"), strict=True)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # theirs
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # nothing in the home of whoever runs this
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    record = logged("wandb", tmp_path)
    files = [path.read_bytes() for path in record.folder.glob(f"wandb/offline-run-*/run-{CONFIG.key}.wandb")]
    assert len(files) == 2  # one per process, under one id
    (first,), (second,) = ([raw for raw in files if word in raw] for word in (b"interrupted", b"finished"))
    assert b"step/loss" in first and b"epoch/test_accuracy" in first and b"epoch/test_accuracy" in second
    for raw, metrics in ((first, record.rows[0]), (second, record.rows[-1])):
        assert repr(metrics["test_loss"])[:10].encode() in raw
