"""``arturo compare``: what it trains once, what it writes, and what it says when a run fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.commands.many import shown
from arturo_lab.pool import workers
from arturo_lab.report.evidence import Estimate
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.run import open_run

COMMAND = [
    "compare",
    "digits-mlp",
    "--optimizers",
    "sgd",
    "arturo",
    "--seeds",
    "5,2",
    "--epochs",
    "1",
    "--subset",
    "96",
    "--set",
    "sgd.lr=0.05",
    "--jobs",
    "2",
]


def test_writes_everything_and_trains_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([*COMMAND, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    records, problems = read_runs(tmp_path)
    assert problems == [] and [(r.config["optimizer"], r.config["seed"]) for r in records] == [
        ("arturo", 2),
        ("arturo", 5),
        ("sgd", 2),
        ("sgd", 5),
    ]
    assert {record.config["settings"]["lr"] for record in records} == {1.0, 0.05}
    figures = sorted(path.name for path in (tmp_path / "figures").iterdir())
    panels = ("", "-result", "-time", "-train-loss")
    assert figures == sorted(f"digits-mlp{panel}.{kind}" for panel in panels for kind in ("png", "pdf"))
    assert all((tmp_path / "figures" / name).stat().st_size > 5_000 for name in figures)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["command"] == "arturo " + " ".join(COMMAND)
    (task,) = summary["tasks"]
    sgd, arturo = task["optimizers"]
    expected = Estimate.of([record.result["test_accuracy"] for record in records[:2]])
    assert arturo["test_accuracy"] == pytest.approx(expected.mean)
    assert arturo["test_accuracy_half_width"] == pytest.approx(expected.half_width)
    assert task["seeds"] == [2, 5] and sgd["finished"] == 2 and sgd["settings"]["lr"] == 0.05
    assert f"{100 * expected.mean:.2f} ±" in out and "half of its 95 % t-interval" in out
    assert f"figure: {tmp_path}/figures/digits-mlp.png\npage: {tmp_path}/report.html\n" in out
    assert "SGD" in (tmp_path / "report.html").read_text(encoding="utf-8")

    before = {path: path.read_bytes() for path in tmp_path.glob("digits-mlp/*/*")}
    monkeypatch.setattr(workers.Worker, "start", lambda *arguments: pytest.fail("nothing was left to train"))
    assert cli.main([*COMMAND, "--out", str(tmp_path)]) == 0
    again = capsys.readouterr().out
    assert again.startswith("reused: 4 of 4 runs\n") and out.partition("8x8 digits")[2] in again
    assert {path: path.read_bytes() for path in tmp_path.glob("digits-mlp/*/*")} == before
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_only_its_own_runs_are_compared(tmp_path: Path) -> None:
    """Others may lie in the same folder."""
    command = ["compare", "digits-mlp", "--optimizers", "sgd", "--seeds", "1", "--subset", "96", "--epochs"]
    for epochs in ("1", "2"):
        assert cli.main([*command, epochs, "--out", str(tmp_path)]) == 0
    (task,) = json.loads((tmp_path / "summary.json").read_text())["tasks"]
    assert task["epochs"] == 2 and len(read_runs(tmp_path)[0]) == 2


def test_a_failed_run_is_said_and_the_others_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "digits-mlp", "--optimizers", "sgd", "adam", "--seeds", "1", "--subset", "96", "--epochs", "1"]
    with open_run(tmp_path, RunConfig.for_task("digits-mlp", "adam", 0, 1, subset=96)):
        assert cli.main([*command, "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert err == "arturo: 1 of 2 runs failed; see above for the reasons\n"
    assert "digits-mlp, Adam, seed 0: failed:" in out and "is training here" in out
    assert "1 unfinished" in out and "page:" in out
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    assert "unfinished" not in capsys.readouterr().out.partition("8x8 digits")[2]


def test_an_environment_that_cannot_be_read_is_a_failed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "digits-mlp", "--optimizers", "sgd", "adam", "--seeds", "1", "--subset", "96", "--epochs", "1"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.glob("digits-mlp/adam-*")
    (folder / "environment.json").write_text("[1]")
    capsys.readouterr()
    assert cli.main([*command, "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    what = f"{folder}/environment.json: must be an object, got list; remove the folder to train it again"
    assert f"digits-mlp, Adam, seed 0: failed: {what}" in out and "Traceback" not in err
    assert (folder / "environment.json").read_text() == "[1]"


def test_missing_data_is_said_before_anything_is_made(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "digits-mlp", "fmnist-cnn", "--data-dir", str(nowhere), "--out", str(nowhere / "runs")]
    assert cli.main(command) == 2
    assert "arturo fetch fashion-mnist" in capsys.readouterr().err and not (nowhere / "runs").exists()


def test_command_is_shown_without_folders() -> None:
    words = ["compare", "digits-mlp", "--out", "/a/b", "--data-dir=/c", "--seeds", "2"]
    assert shown(words) == "arturo compare digits-mlp --seeds 2"
