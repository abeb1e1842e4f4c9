"""Many runs in separate processes: the same numbers, nothing trained twice, and no death that costs more than a moment."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from arturo_lab.data import loading
from arturo_lab.errors import RunError
from arturo_lab.pool import workers
from arturo_lab.pool.status import RunStatus, status_of
from arturo_lab.pool.workers import train_all
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import plan
from arturo_lab.runs.records import read_run
from arturo_lab.runs.run import open_run
from arturo_lab.training.train import train

DIGITS = loading.load("digits")


def configs(epochs: int = 2, seeds: tuple[int, ...] = (0, 1), **options: Any) -> list[RunConfig]:
    return plan(["digits-mlp"], ["sgd", "arturo"], seeds, epochs, subset=96, **options)


def numbers(config: RunConfig, out: Path) -> list[dict[str, Any]]:
    """Everything a run measured except times."""
    record = read_run(out / config.task / config.name)
    assert record.status == "finished"
    return [{key: value for key, value in row.items() if "second" not in key} for row in record.rows]


def by_itself(config: RunConfig, out: Path, **options: Any) -> list[dict[str, Any]]:
    """The same, trained in this process."""
    with open_run(out, config) as folder:
        train(config, DIGITS, run=folder, **options)
    return numbers(config, out)


def files(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_two_at_once_then_nothing_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[RunStatus] = []
    last = train_all(configs(), tmp_path, jobs=2, on_status=told.append)
    assert [(status.config, status.state, status.epochs, status.reused) for status in last] == [
        (config, "finished", 2.0, False) for config in configs()
    ]
    assert [status.state for status in told[:4]] == ["waiting"] * 4
    assert {status.epochs for status in told if status.config == configs()[0]} >= {0.0, 1.0, 2.0}
    assert len(multiprocessing.active_children()) == 0
    for config, status in zip(configs(), last, strict=True):
        rows = numbers(config, tmp_path)
        assert rows == by_itself(config, tmp_path / "alone") and rows[-1]["test_accuracy"] == status.value

    before = files(tmp_path)
    monkeypatch.setattr(workers.Worker, "start", lambda *arguments: pytest.fail("nothing was left to train"))
    again = train_all(configs(), tmp_path, jobs=2)
    assert [(status.state, status.reused, status.value) for status in again] == [("finished", True, n.value) for n in last]
    assert files(tmp_path) == before


def test_interrupted_diverged_locked_and_broken_runs_side_by_side(tmp_path: Path) -> None:
    """One worker has them all: none of them may end it."""
    half, whole, locked, broken = configs()
    with pytest.raises(KeyboardInterrupt):
        by_itself(half, tmp_path, stop=lambda: True)
    steps_before = (tmp_path / "digits-mlp" / half.name / "steps.jsonl").read_bytes()
    folder = tmp_path / "digits-mlp" / broken.name
    folder.mkdir()
    (folder / "config.json").write_text("{")
    (wild,) = plan(["digits-mlp"], ["sgd"], [0], 2, subset=96, overrides={"sgd": {"lr": 1e25}})
    with open_run(tmp_path, locked):
        last = {status.config: status for status in train_all([locked, broken, wild, half, whole], tmp_path)}
    assert last[locked].state == "failed" and f"process {os.getpid()} on" in last[locked].message
    assert last[broken].state == "failed" and last[broken].message.startswith(f"{folder}/config.json: corrupt")
    assert last[wild].state == "diverged" and read_run(tmp_path / "digits-mlp" / wild.name).status == "diverged"
    assert (folder / "config.json").read_text() == "{"
    assert numbers(half, tmp_path) == by_itself(half, tmp_path / "alone")
    assert (tmp_path / "digits-mlp" / half.name / "steps.jsonl").read_bytes().startswith(steps_before)  # it went on
    assert last[whole].state == "finished"


def kill_child(*_: Any) -> None:
    (child,) = multiprocessing.active_children()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)


def test_killed_worker_is_replaced_once(tmp_path: Path) -> None:
    config, other = configs(epochs=40, seeds=(0,))
    told: list[RunStatus] = []
    kills = [1]

    def on_status(status: RunStatus) -> None:
        told.append(status)
        if status.config == config and status.state == "training" and status.epochs >= 1 and kills:
            kills.pop()
            kill_child()

    last = train_all([config, other], tmp_path, on_status=on_status)
    assert [status.state for status in last] == ["finished", "finished"]
    (said,) = (status for status in told if status.message)
    assert said.config == config and said.state == "waiting"
    assert said.message == "its process was killed by signal 9; another worker resumes it from its last checkpoint"
    assert numbers(config, tmp_path) == by_itself(config, tmp_path / "alone")


def test_killed_twice_is_given_up_and_can_go_on(tmp_path: Path) -> None:
    config, other = configs(epochs=40, seeds=(0,))

    def on_status(status: RunStatus) -> None:
        if status.config == config and status.state == "training" and status.epochs >= 1:
            kill_child()

    last = train_all([config, other], tmp_path, on_status=on_status)
    assert [status.state for status in last] == ["failed", "finished"]
    again = "2 times; run the same command again to resume from its last checkpoint"
    assert last[0].message == f"its process was killed by signal 9; {again}"
    assert status_of(config, tmp_path).state == "waiting" and status_of(config, tmp_path).epochs >= 1
    assert train_all([config], tmp_path)[0].state == "finished"
    assert numbers(config, tmp_path) == by_itself(config, tmp_path / "alone")


def test_an_error_of_who_listens_is_not_a_dead_worker(tmp_path: Path) -> None:
    """A full disk under the rows that a status makes: said as it is, and no run counts as lost."""
    told: list[RunStatus] = []

    def on_status(status: RunStatus) -> None:
        told.append(status)
        if status.state == "finished":
            raise OSError(errno.ENOSPC, "No space left on device", "runs.jsonl")

    with pytest.raises(OSError, match=r"No space left on device: 'runs\.jsonl'"):
        train_all(configs(seeds=(0,)), tmp_path, on_status=on_status)
    assert told[-1].state == "finished" and not any(status.message for status in told)
    assert multiprocessing.active_children() == []


def test_stop_saves_and_the_next_call_goes_on(tmp_path: Path) -> None:
    wanted = configs(epochs=40, seeds=(0,))
    told: list[RunStatus] = []
    last = train_all(wanted, tmp_path, on_status=told.append, stop=lambda: any(status.epochs >= 1 for status in told))
    assert [status.state for status in last] == ["stopped", "waiting"] and 1 <= last[0].epochs < 40
    folder = tmp_path / "digits-mlp" / wanted[0].name
    assert (folder / "checkpoint.pt").exists() and not (tmp_path / "digits-mlp" / wanted[1].name).exists()
    assert [status.state for status in train_all(wanted, tmp_path)] == ["finished"] * 2
    assert numbers(wanted[0], tmp_path) == by_itself(wanted[0], tmp_path / "alone")


def started(out: Path) -> tuple[subprocess.Popen[str], RunConfig]:
    """A real comparison in a process group of its own, as a shell starts it, past its first epoch."""
    command = ["compare", "digits-mlp", "--optimizers", "sgd", "--seeds", "1", "--epochs", "5000", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "arturo_lab", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    config = RunConfig.for_task("digits-mlp", "sgd", 0, 5000)
    while status_of(config, out).epochs < 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process, config


def test_ctrl_c_reaches_all_processes_and_leaves_a_run_to_go_on_with(tmp_path: Path) -> None:
    process, config = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err, err
    assert (
        f"arturo: interrupted; to resume: arturo compare digits-mlp --optimizers sgd --seeds 1 --epochs 5000 --out {tmp_path}"
        in err
    )
    record = read_run(tmp_path / "digits-mlp" / config.name)
    assert record.status == "unfinished" and (record.folder / "checkpoint.pt").exists()
    steps = [json.loads(line)["step"] for line in (record.folder / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 45 * len(record.rows)
    assert not (tmp_path / "summary.json").exists()


def test_worker_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    process, config = started(tmp_path)
    process.kill()
    process.communicate()
    for _ in range(600):
        try:
            with open_run(tmp_path, config) as folder:  # nobody else has it
                assert folder.started
            break
        except RunError as error:
            assert "is training here" in str(error)
            time.sleep(0.1)
    else:
        pytest.fail("the worker keeps running without a parent")
