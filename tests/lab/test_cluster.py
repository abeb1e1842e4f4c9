"""Runs on a Ray cluster of two nodes: the numbers of local runs, whatever happens to the nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray.cluster_utils import Cluster as Nodes

from arturo_lab.cli import main
from arturo_lab.data import loading
from arturo_lab.errors import ConfigError
from arturo_lab.pool import cluster as cluster_module
from arturo_lab.pool.cluster import Cluster, connected
from arturo_lab.pool.control import Control
from arturo_lab.pool.status import RunStatus, status_of
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import plan
from arturo_lab.runs.records import read_run
from arturo_lab.runs.run import open_run
from arturo_lab.training.train import train

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's
DIGITS = loading.load("digits")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes with room for one run each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        result = Nodes(initialize_head=True, head_node_args={"include_dashboard": False, "_system_config": ALERT, **NODE})
        result.add_node(**NODE)
        yield result
        result.shutdown()


ALERT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
SLOWLY = 0.0  # a checkpoint after every step: there is time to interfere
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster(nodes: Nodes) -> Iterator[Cluster]:
    with connected(nodes.address) as result:
        yield result


def configs(epochs: int = 2, seeds: tuple[int, ...] = (0, 1), **options: Any) -> list[RunConfig]:
    return plan(["digits-mlp"], ["sgd", "arturo"], seeds, epochs, subset=96, threads=1, **options)


def numbers(config: RunConfig, out: Path) -> list[dict[str, Any]]:
    """Everything a run measured except times; every step is there once."""
    record = read_run(out / config.task / config.name)
    assert record.status == "finished"
    steps = [json.loads(line)["step"] for line in (record.folder / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(1, config.epochs * config.steps_per_epoch + 1))
    return [{key: value for key, value in row.items() if "second" not in key} for row in record.rows]


def by_itself(config: RunConfig, out: Path) -> list[dict[str, Any]]:
    with open_run(out, config) as folder:
        train(config, DIGITS, run=folder)
    return numbers(config, out)


def process_of(config: RunConfig, out: Path) -> int:
    """The process that trains it, from its lock."""
    said = re.match(r"process (\d+) on", (out / config.task / config.name / ".lock").read_text())
    assert said is not None
    return int(said[1])


def test_a_node_is_removed_in_the_middle(nodes: Nodes, cluster: Cluster, tmp_path: Path) -> None:
    wanted = configs(epochs=120)[:3]
    told: list[RunStatus] = []
    while cluster.capacity(wanted) != 2:  # the node that the last test removed is still counted
        time.sleep(0.2)

    def on_status(status: RunStatus) -> None:
        told.append(status)
        now = {status.config: status for status in told}.values()
        if len(nodes.worker_nodes) == 1 and sum(status.state == "training" and status.epochs >= 2 for status in now) == 2:
            nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)

    last = cluster.train_all(wanted, tmp_path, on_status=on_status, checkpoint_seconds=SLOWLY)
    nodes.add_node(**NODE)
    assert [status.state for status in last] == ["finished"] * 3
    hit = [status for status in told if status.message]
    assert hit and {status.state for status in hit} == {"waiting"} and any(status.epochs >= 2 for status in hit)
    assert "its worker or node is gone (NodeDiedError); another worker resumes it from its last checkpoint" in hit[0].message
    ended = [status.config for status in told if status.state == "finished"]
    assert sorted(config.name for config in ended) == sorted(config.name for config in wanted)  # each of them once
    for config, status in zip(wanted, last, strict=True):
        rows = numbers(config, tmp_path)
        assert rows == by_itself(config, tmp_path / "alone") and rows[-1]["test_accuracy"] == status.value
    assert not list(tmp_path.glob(".ray-*"))
    assert print.__module__ == "builtins"  # Ray would have its own

    again = cluster.train_all(wanted, tmp_path, on_status=told.append)
    assert [(status.state, status.reused) for status in again] == [("finished", True)] * 3


def test_killed_worker_diverged_and_broken_runs_one_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    killed, whole, broken, _ = configs(epochs=120)
    (wild,) = plan(["digits-mlp"], ["sgd"], [0], 2, subset=96, threads=1, overrides={"sgd": {"lr": 1e25}})
    folder = tmp_path / "digits-mlp" / broken.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    told: list[RunStatus] = []

    def on_status(status: RunStatus) -> None:
        told.append(status)
        if status.config == killed and status.epochs >= 2 and not any(n.message for n in told if n.config == killed):
            os.kill(process_of(killed, tmp_path), signal.SIGKILL)

    last = cluster.train_all([killed, whole, broken, wild], tmp_path, 1, on_status=on_status, checkpoint_seconds=SLOWLY)
    assert [status.state for status in last] == ["finished", "finished", "failed", "diverged"]
    assert last[2].message.startswith(f"{folder}/config.json: corrupt") and (folder / "config.json").read_text() == "{"
    (said,) = (status for status in told if status.message and status.config == killed)
    assert said.state == "waiting" and "(WorkerCrashedError)" in said.message
    for config in (killed, whole):
        assert numbers(config, tmp_path) == by_itself(config, tmp_path / "alone")
    trained = [status.config for status in told if status.state == "training"]
    order = list(dict.fromkeys(trained))
    assert trained == sorted(trained, key=order.index)  # never two at a time


def test_a_folder_that_somebody_else_has(cluster: Cluster, tmp_path: Path) -> None:
    held, other = configs(seeds=(0,))
    with open_run(tmp_path, held) as folder:
        last = cluster.train_all([held, other], tmp_path)
        assert not folder.started
    assert [status.state for status in last] == ["failed", "finished"] and f"process {os.getpid()} on" in last[0].message


def test_a_node_without_the_storage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def elsewhere(out: Path) -> Iterator[Control]:
        yield Control(tmp_path / "not" / "here")

    monkeypatch.setattr(cluster_module, "control_folder", elsewhere)
    (last,) = cluster.train_all(configs()[:1], tmp_path)
    assert last.state == "failed"
    assert last.message.endswith(f": does not see {tmp_path}; --out must be on storage that all nodes share")
    assert list(tmp_path.iterdir()) == []


def test_stop_saves_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    wanted = configs(epochs=400)
    told: list[RunStatus] = []
    last = cluster.train_all(wanted, tmp_path, 2, on_status=told.append, stop=lambda: any(s.epochs >= 1 for s in told))
    states = [status.state for status in last]
    assert set(states[:2]) <= {"stopped", "waiting"} and "stopped" in states and states[2:] == ["waiting"] * 2
    # The other one may have been stopped before its first epoch ended.
    stopped = max(wanted[:2], key=lambda config: status_of(config, tmp_path).epochs)
    steps = (tmp_path / "digits-mlp" / stopped.name / "steps.jsonl").read_text().splitlines()
    assert status_of(stopped, tmp_path).epochs >= 1 and len(steps) < 400 * stopped.steps_per_epoch
    with open_run(tmp_path, stopped) as folder:  # nobody else has it, and its checkpoint fits its rows
        history, captured = folder.begin()
        assert history and captured is not None


def run_elsewhere(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "arturo_lab", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_ctrl_c_of_a_comparison(nodes: Nodes, tmp_path: Path) -> None:
    words = ["compare", "digits-mlp", "--optimizers", "sgd", "--seeds", "1", "--epochs", "5000", "--out", str(tmp_path)]
    process = run_elsewhere(*words, "--ray", nodes.address)
    config = RunConfig.for_task("digits-mlp", "sgd", 0, 5000)
    while status_of(config, tmp_path).epochs < 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err, err
    assert f"arturo: interrupted; to resume: arturo {' '.join(words)} --ray {nodes.address}" in err
    assert read_run(tmp_path / "digits-mlp" / config.name).status == "unfinished"
    with open_run(tmp_path, config) as folder:
        assert folder.started


def test_tune_finds_the_same(nodes: Nodes, tmp_path: Path) -> None:
    words = [
        "tune",
        "digits-mlp",
        "--optimizer",
        "sgd",
        "--protocol",
        "fair",
        "--studies",
        "1",
        "--trials",
        "2",
        "--folds",
        "2",
    ]
    words += ["--seeds", "1", "--epochs", "1", "--subset", "96", "--threads", "1", "--test-seeds", "1"]
    process = run_elsewhere(*words, "--out", str(tmp_path / "ray.json"), "--ray", nodes.address)
    assert main([*words, "--out", str(tmp_path / "here.json")]) == 0
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    there, here = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("ray", "here"))
    assert there["settings"] == here["settings"] and there["search"]["test"] == here["search"]["test"]
    rows = [
        [{**json.loads(line), "seconds": 0} for line in (tmp_path / name / "trials.jsonl").read_text().splitlines()]
        for name in ("ray", "here")
    ]
    assert len(rows[0]) == 2 and rows[0] == rows[1]


def test_more_than_any_node_has(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ray: a run takes 3 CPUs and 0 GPUs, the nodes have 1 CPUs and 0 GPUs, 1 CPUs"):
        cluster.train_all(plan(["digits-mlp"], ["sgd"], [0], 1, threads=3), tmp_path)
    with pytest.raises(ConfigError, match="device: on a cluster Ray chooses the GPU; say cuda, got cuda:1"):
        cluster.train_all(plan(["digits-mlp"], ["sgd"], [0], 1, device="cuda:1"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_cluster_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "digits-mlp", "--ray", "127.0.0.1:1", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "arturo: ray: no cluster at 127.0.0.1:1 ([Errno 111] Connection refused); `ray start --head` makes" in err


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_ray_is_not_installed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find_spec(name, *rest))
    assert main([command, "digits-mlp", "--ray", "auto", "--out", str(tmp_path / "x.json")]) == 2
    assert "ray: needs Ray; to install it: pip install 'arturo[ray]'" in capsys.readouterr().err
