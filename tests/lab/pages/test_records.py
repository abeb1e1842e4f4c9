"""Reading run folders: whole ones, half-written ones, broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.registry import ConfigError
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.compact import write_compact
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
    with pytest.raises(ConfigError, match=r"^DIR: .*nowhere does not exist"):
        read_runs(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^DIR: .*file is neither a folder nor a file of runs"):
        read_runs(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"^DIR: .* holds no run folders .*arturo compare TASK --out"):
        read_runs(tmp_path)
    (make_run(tmp_path, "sgd", 0) / "config.json").write_text("")
    with pytest.raises(
        ConfigError,
        match=r"^DIR: .* holds 1 run folder, which cannot be read:\n  digits-mlp/sgd-seed0-\w+: config.json: corrupt",
    ):
        read_runs(tmp_path)


def test_runs_in_one_file_read_as_their_folders_did(make_run, tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / "runs", "arturo", seed, final=0.9 + 0.01 * seed)
    make_run(tmp_path / "runs", "sgd", 0, status="diverged", done=5)
    make_run(tmp_path / "runs", "adam", 0, status="unfinished", done=2)
    records, _ = read_runs(tmp_path / "runs")
    file = tmp_path / "kept" / "runs.jsonl"
    file.parent.mkdir()
    write_compact(file, records)
    kept, problems = read_runs(tmp_path / "kept")
    over = [record for record in records if record.status != "unfinished"]  # nothing resumes from the file
    assert problems == [] and [record.folder.name for record in kept] == [record.folder.name for record in over]
    for one, other in zip(over, kept, strict=True):
        assert (one.config, one.environment, one.result, one.status) == (
            other.config,
            other.environment,
            other.result,
            other.status,
        )
        assert one.series("test_accuracy") == pytest.approx(other.series("test_accuracy"), rel=1e-6)
        assert one.wall_seconds == pytest.approx(other.wall_seconds, rel=1e-6)
    assert file.stat().st_size < 0.6 * sum(path.stat().st_size for path in (tmp_path / "runs").rglob("*.json*"))
    assert [record.folder.name for record in read_runs(file)[0]] == [record.folder.name for record in kept]

    before = file.read_bytes()
    write_compact(file, kept[:1])  # those that are in it stay, and nothing changes
    assert file.read_bytes() == before
    (tmp_path / "runs" / "runs.jsonl").write_bytes(before)
    assert len(read_runs(tmp_path / "runs")[0]) == 4  # a folder goes before its copy in the file
    file.write_text('{"format": 99}\n')
    with pytest.raises(ConfigError, match=r"nor a file of runs \(runs.jsonl: not a file of runs of format 1\)"):
        read_runs(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("config", {}, "line 3: config: task must be str, got None"),
        ("config", "sgd", "line 3: config must be an object, got 'sgd'"),
        ("metrics", [1.0], "line 3: metrics must be an object, got [1.0]"),
        ("metrics", {"test_loss": 1.0}, "line 3: test_loss must be a list with a value for each epoch, got 1.0"),
        ("metrics", {"a": [1.0], "b": []}, "line 3: b must be a list with a value for each epoch, got []"),
        ("environment", 7, "line 3: environment must be one of the 1 of line 1, got 7"),
        ("environment", None, "line 3: environment must be a number, got None"),
        ("result", {}, "line 3: result: status must be finished or diverged, got None"),
        ("result", 5, "line 3: result must be an object, got 5"),
        ("name", 5, "line 3: name must be a word, got 5"),
        ("task", ["a"], "line 3: task must be a word, got ['a']"),
    ],
)
def test_a_line_that_is_no_run_is_named(
    field: str, value: object, message: str, make_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        make_run(tmp_path / "runs", "sgd", seed)
    file = tmp_path / "runs.jsonl"
    write_compact(file, read_runs(tmp_path / "runs")[0])
    head, first, second = file.read_text().splitlines()
    file.write_text("\n".join((head, first, json.dumps({**json.loads(second), field: value}))) + "\n")
    assert cli.main(["report", str(file)]) == 2
    expected = f"arturo: DIR: {file} is neither a folder nor a file of runs (runs.jsonl: {message})\n"
    assert capsys.readouterr().err == expected


def test_numbers() -> None:
    assert [number(x) for x in (1, 0.5, None, "1", float("inf"), False, 10**400)] == [1.0, 0.5, None, None, None, None, None]
