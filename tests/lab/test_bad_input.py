"""Mistakes on the command line: one line that names the option, the value and the way out, and nothing is made."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.pool import workers
from arturo_lab.runs.config import RunConfig


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digits-mlp", "--threads", "100000"], "threads: must be at most 1,024, got 100000"),
        (["train", "digits-mlp", "--threads", "0"], "threads: must be an integer >= 1, got 0"),
        (
            ["compare", "digits-mlp", "--seeds", "1000000000000"],
            "seeds: a count must be at most 10,000, got 1000000000000; a single seed is written 1000000000000,",
        ),
        (["compare", "digits-mlp", "--seeds", "9" * 5000], "seeds: must be below 2**63, got 999"),
        (
            ["train", "digits-mlp", "--epochs", "99999999999999999999"],
            "epochs: must be at most 1,000,000, got 99999999999999999999",
        ),
        (["train", "digits-mlp", "--optimizer", ""], "--optimizer: must not be empty"),
        (["compare", "digits-mlp", "--optimizers", "sgd", ""], "--optimizers: must not be empty"),
        (["train", ""], "TASK: must not be empty"),
        (["train", "digits-mlp", "--out", ""], "--out: must not be empty"),
        (["tune", "digits-mlp", "--out", ""], "--out: must not be empty"),
        (
            ["tune", "digits-mlp", "--storage", "sqlite:////nonexistent/x.db"],
            "storage: the folder /nonexistent of sqlite:////nonexistent/x.db does not exist; create it first",
        ),
        (
            ["train", "digits-mlp", "--optimizer", "adaarturo", "--set", "refresh=0.5"],
            "set refresh: must be an integer, got 0.5",
        ),
        (["calibrate", "digits-mlp", "--held-out", "-5"], "held-out: must be an integer >= 1, got -5"),
        (
            ["tune", "digits-mlp", "--cross", "nofile.json"],
            "cross: nofile.json does not exist; name what `arturo tune --out` wrote",
        ),
        (["tune-report", "nofile.json"], "FILE: nofile.json does not exist; name what `arturo tune --out` wrote"),
        (["train", "digits-mlp", "--device", "mps"], "device: mps is not available here; this machine has cpu"),
        (["compare", "digits-mlp", "--device", "mps"], "device: mps is not available here; this machine has cpu"),
        (["train", "digits-mlp", "--data-dir", "/nonexistent"], "data-dir: /nonexistent does not exist"),
        (["compare", "digits-mlp", "--data-dir", "/nonexistent"], "data-dir: /nonexistent does not exist"),
        (["tune", "digits-mlp", "--data-dir", "/nonexistent"], "data-dir: /nonexistent does not exist"),
        (
            ["compare", "digits-mlp", "--optimizers", "sgd", "adam", "--against", "bogus"],
            "against: no runs of 'bogus'; use one of adam, sgd, or all for all pairs",
        ),
        (
            ["reproduce", "table1", "--tasks", "fmnist-cnn", "--optimizers", "sgd", "--against", "adamw"],
            "against: no runs of 'adamw'; use one of sgd, or all for all pairs",
        ),
        (["list", "--data-dir", "/nonexistent"], "data-dir: /nonexistent does not exist"),
        (["trian", "digits-mlp"], "command: unknown name 'trian'; did you mean train?"),
        ([""], "command: unknown name ''; known: train, compare"),
        ([], "command: missing; `arturo --help` lists them"),
    ],
)
def test_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"arturo: {message}") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_integer_of_another_package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pytorch_optimizer")
    words = ["train", "digits-mlp", "--optimizer", "soap", "--set", "precondition_frequency=0.5", "--out", str(tmp_path)]
    assert cli.main(words) == 2
    assert capsys.readouterr().err == "arturo: set precondition_frequency: must be an integer, got 0.5\n"


def test_numbers_whose_default_happens_to_be_an_integer() -> None:
    assert RunConfig.for_task("digits-mlp", "sgd", overrides={"dampening": 0.5}).settings["dampening"] == 0.5


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_corrupt_config_says_how_to_get_out(content: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = RunConfig.for_task("digits-mlp", "sgd", epochs=1, subset=96)
    folder = tmp_path / "digits-mlp" / config.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(content)
    words = ["digits-mlp", "--epochs", "1", "--subset", "96", "--out", str(tmp_path)]
    assert cli.main(["train", *words, "--optimizer", "sgd"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"arturo: {folder}/config.json: ") and err.endswith("or remove the folder to train it again\n")
    assert cli.main(["compare", *words, "--optimizers", "sgd", "--seeds", "1"]) == 2
    out, err = capsys.readouterr()
    assert f"failed: {folder}/config.json: " in out and "remove the folder to train it again" in out
    assert "the same command" not in err
    assert (folder / "config.json").read_text() == content


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "digits-mlp", "--optimizers", "sgd", "--seeds", "1", "--epochs", "1", "--subset", "96"],
        ["sweep", "digits-mlp", "--optimizers", "sgd", "--lr", "0.1:0.2", "--epochs", "1", "--subset", "96"],
        ["league", "--tasks", "digits-mlp", "--optimizers", "sgd", "--seeds", "1", "--work", "work"],
    ],
    ids=lambda words: words[0],
)
def test_an_out_that_cannot_be_written_is_said_before_any_training(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers.Worker, "start", lambda *arguments: pytest.fail("nothing may be trained"))
    (tmp_path / "file").touch()
    for out in ("file", "file/below"):
        assert cli.main([*words, "--out", out]) == 2
        assert capsys.readouterr().err == "arturo: out: file is a file; choose another --out\n"

    def full(**options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert cli.main([*words, "--out", "new"]) == 2
    err = capsys.readouterr().err
    assert err == "arturo: out: cannot write to new (Read-only file system); choose another --out\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
