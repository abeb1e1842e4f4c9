"""Reading run folders: whole ones, half-written ones, broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from arturo_lab.registry import ConfigError
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.records import number


def test_reads_what_was_written(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "arturo", 1, final=0.93)
    make_run(tmp_path, "adam", 0, epochs=3)
    (adam, arturo), problems = read_runs(tmp_path)
    assert problems == [] and (adam.config["optimizer"], arturo.config["optimizer"]) == ("adam", "arturo")
    assert arturo.status == "finished" and arturo.result["test_accuracy"] == 0.93
    assert arturo.series("eta") == [0.5 * epoch for epoch in range(1, 9)] and adam.series("eta") == [None] * 3
    assert arturo.wall_seconds == pytest.approx([1.1 * epoch for epoch in range(1, 9)])
    assert adam.environment["torch"] == "2.13.0"


def test_a_run_folder_itself_is_a_root_too(make_run, tmp_path: Path) -> None:
    (record,), _ = read_runs(make_run(tmp_path, "sgd", 2))
    assert record.config["seed"] == 2


def test_wall_time_is_summed_where_it_is_not_recorded(make_run, tmp_path: Path) -> None:
    folder = make_run(tmp_path, "sgd", 0, epochs=3)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["wall_seconds"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_runs(folder)[0][0].wall_seconds == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("status", "done"), [("diverged", 5), ("unfinished", 4), ("unfinished", 0)])
def test_status(make_run, tmp_path: Path, status: str, done: int) -> None:
    (record,), problems = read_runs(make_run(tmp_path, "sgd", 0, status=status, done=done))
    assert record.status == status and len(record.rows) == done and problems == []


def test_a_run_without_metrics_has_not_begun(make_run, tmp_path: Path) -> None:
    folder = make_run(tmp_path, "sgd", 0, status="unfinished", done=2)
    (folder / "metrics.jsonl").unlink()
    (folder / "environment.json").unlink()
    (record,), _ = read_runs(tmp_path)
    assert record.rows == () and record.status == "unfinished" and record.environment == {}


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_row_being_written_is_left_out(make_run, tmp_path: Path, cut: int) -> None:
    folder = make_run(tmp_path, "sgd", 0, status="unfinished", done=4)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[:-cut])
    (record,), problems = read_runs(tmp_path)
    assert len(record.rows) == 3 and problems == []


BROKEN = {
    "config.json: corrupt": ("config.json", '{"task": '),
    "config.json: must be an object, got list": ("config.json", "[]"),
    "config.json: seed must be int, got 'one'": ("config.json", '{"task": "t", "optimizer": "o", "seed": "one", "epochs": 1}'),
    "config.json: epochs must be int, got True": ("config.json", '{"task": "t", "optimizer": "o", "seed": 1, "epochs": true}'),
    "result.json: corrupt": ("result.json", ""),
    "result.json: status must be finished or diverged, got 'fine'": ("result.json", '{"status": "fine"}'),
    "result.json: test_accuracy must be a number, got None": ("result.json", '{"status": "finished"}'),
    "environment.json: corrupt": ("environment.json", "{"),
    "metrics.jsonl: line 2 is corrupt": ("metrics.jsonl", '{"epoch": 1}\n{"epoch": 2\n{"epoch": 3}\n'),
    "metrics.jsonl: line 2 must be epoch 2, got 3": ("metrics.jsonl", '{"epoch": 1}\n{"epoch": 3}\n'),
    "metrics.jsonl: line 1 must be an object, got int": ("metrics.jsonl", "7\n"),
    "metrics.jsonl: has 1 of 8 epochs, but result.json says finished": ("metrics.jsonl", '{"epoch": 1}\n'),
    "metrics.jsonl: line 1 is corrupt (": ("metrics.jsonl", "\0\0\udcff\n"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_runs_are_named_and_the_others_kept(make_run, tmp_path: Path, message: str) -> None:
    make_run(tmp_path, "adam", 0)
    folder = make_run(tmp_path, "sgd", 0)
    name, content = BROKEN[message]
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    records, (problem,) = read_runs(tmp_path)
    assert [record.config["optimizer"] for record in records] == ["adam"]
    assert str(problem).startswith(f"digits-mlp/{folder.name}: {message}")


def test_copies_count_once_and_the_one_that_is_over_wins(make_run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "b", "sgd", 0)
    shutil.copytree(tmp_path / "b", tmp_path / "a")
    (tmp_path / "a" / "digits-mlp" / folder.name / "result.json").unlink()
    (record,), (problem,) = read_runs(tmp_path)
    assert record.folder == folder and record.status == "finished"
    assert str(problem) == f"a/digits-mlp/{folder.name}: the same run as b/digits-mlp/{folder.name}"


def test_nothing_to_read(make_run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^DIR: .*nowhere is not there"):
        read_runs(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^DIR: .*file is not a folder"):
        read_runs(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"^DIR: .* holds no run folders .*arturo compare TASK --out"):
        read_runs(tmp_path)
    (make_run(tmp_path, "sgd", 0) / "config.json").write_text("")
    with pytest.raises(
        ConfigError,
        match=r"^DIR: .* holds 1 run folder, which cannot be read:\n  digits-mlp/sgd-seed0-\w+: config.json: corrupt",
    ):
        read_runs(tmp_path)


def test_numbers() -> None:
    assert [number(x) for x in (1, 0.5, None, "1", float("inf"), False, 10**400)] == [1.0, 0.5, None, None, None, None, None]
