"""The loggers, with the real packages: what a training tells them can be read back, also after an interruption."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.data import loading
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record, read_run
from arturo_lab.runs.run import open_run
from arturo_lab.training.loggers import Logging
from arturo_lab.training.train import train

DIGITS = loading.load("digits")
CONFIG = RunConfig.for_task("digits-mlp", "arturo", epochs=3, subset=64)


def logged(name: str, out: Path) -> Record:
    """Two processes' worth: stopped in the second epoch, then to the end."""
    asked = iter([False] * 3 + [True] + [False] * 9)
    for _ in range(2):
        with suppress(KeyboardInterrupt), open_run(out, CONFIG) as folder, Logging((name,), out).of(folder) as (logger,):
            train(CONFIG, DIGITS, logger.on_epoch, logger.on_step, run=folder, stop=lambda: next(asked))
    return read_run(folder.path)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = logged("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "digits-mlp" / CONFIG.name))
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
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
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
    files = [path.read_bytes() for path in tmp_path.glob(f"wandb/offline-run-*/run-{CONFIG.key}.wandb")]
    assert len(files) == 2  # one per process, under one id
    (first,), (second,) = ([raw for raw in files if word in raw] for word in (b"interrupted", b"finished"))
    assert b"step/loss" in first and b"epoch/test_accuracy" in first and b"epoch/test_accuracy" in second
    for raw, metrics in ((first, record.rows[0]), (second, record.rows[-1])):
        assert repr(metrics["test_loss"])[:10].encode() in raw


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # theirs
def test_all_runs_of_a_comparison_are_in_one_database(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    pytest.importorskip("tensorboard")
    words = ["digits-mlp", "--optimizers", "sgd", "adam", "--seeds", "2", "--epochs", "1", "--subset", "96", "--jobs", "2"]
    assert cli.main(["compare", *words, "--log", "mlflow", "tensorboard", "--out", str(tmp_path)]) == 0
    records, _ = read_runs(tmp_path)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("digits-mlp").experiment_id])
    logged = {run.info.run_name: run.data.metrics["test_accuracy"] for run in runs}
    assert logged == {record.folder.name: record.rows[-1]["test_accuracy"] for record in records} and len(runs) == 4
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {path.name for path in (tmp_path / "tensorboard" / "digits-mlp").iterdir()} == set(logged)


def test_the_runs_of_a_search_are_logged_though_their_folders_go(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    words = ["digits-mlp", "--optimizer", "sgd", "--protocol", "fair", "--studies", "1", "--trials", "2", "--folds", "2"]
    words += ["--seeds", "1", "--epochs", "1", "--subset", "96", "--test-seeds", "1", "--out", str(tmp_path / "sgd.json")]
    assert cli.main(["tune", *words, "--log", "tensorboard"]) == 0
    logged = list((tmp_path / "sgd" / "tensorboard" / "digits-mlp").iterdir())
    assert len(logged) == 2 * 2 + 1 and not (tmp_path / "sgd" / "scratch").exists()
    assert all(next(path.glob("events.out.tfevents.*")).stat().st_size > 500 for path in logged)


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_an_unknown_logger_stops_before_anything_is_made(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "digits-mlp", "--log", "tensorbord", "--out", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err.startswith("arturo: log: unknown name 'tensorbord'; did you mean tensorboard")
    assert list(tmp_path.iterdir()) == []
