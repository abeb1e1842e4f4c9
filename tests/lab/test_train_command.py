"""``arturo train``: what it shows, how it stops and resumes, and what it refuses."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.optim import SGD

from arturo_lab import cli
from arturo_lab.data.download import RemoteFile, sha256
from arturo_lab.data.sources import DATA
from arturo_lab.optimizers.catalog import OPTIMIZERS, OptimizerEntry
from arturo_lab.report.sections import sections
from arturo_lab.runs import run
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record, read_run
from arturo_lab.runs.run import open_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.display import TrainingDisplay
from arturo_lab.training.epoch import EpochMetrics, StepMetrics
from arturo_lab.training.interrupt import interruptible

SMALL = ["train", "digits-mlp", "--epochs", "2", "--subset", "96"]


def trained(out: Path, *options: str) -> Record:
    assert cli.main([*SMALL, "--out", str(out), *options]) == 0
    (folder,) = out.glob("*/*")
    return read_run(folder)


def timeless(record: Record) -> list[Any]:
    return [{key: value for key, value in row.items() if "second" not in key} for row in record.rows]


@pytest.mark.parametrize(
    "option, epochs, end", [("--fold", "val.", "validation"), ("--validation", "val.", "test")], ids=["fold", "validation"]
)
def test_what_was_measured_on_which_data(
    option: str, epochs: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, option, "1/4")
    _, heading, *_, last = capsys.readouterr().out.splitlines()
    assert heading.split()[3:5] == [epochs, "loss"] and last.startswith(f"{end} accuracy ")


def test_lines_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = trained(tmp_path, "--seed", "4")
    out = capsys.readouterr().out
    first, heading, *rows, last = out.splitlines()
    assert first == "digits-mlp, arTuRO, seed 4, 2 epochs of 3 steps"
    assert heading.split() == ["epoch", "train", "loss", "test", "loss", "accuracy", "images/s", "left", "KL/bound", "eta"]
    assert [row.split()[0] for row in rows] == ["1", "2"] and "\x1b" not in out
    assert f"{record.rows[1]['test_accuracy']:.2%}" in rows[1] and "0.9995" in rows[1]
    assert last == f"test accuracy {record.rows[1]['test_accuracy']:.2%}: {record.folder}"
    assert all(len(line) < 80 for line in (heading, *rows))


def test_options_reach_the_config(tmp_path: Path) -> None:
    options = (
        "--optimizer adamw --seed 3 --batch-size 16 --threads 1 --amp bf16 --set lr=0.01 weight_decay=0 --set betas=0.8,0.9"
    )
    config = trained(tmp_path, *options.split()).config
    given = {"optimizer": "adamw", "seed": 3, "batch_size": 16, "threads": 1, "amp": "bf16", "subset": 96, "epochs": 2}
    assert given.items() <= config.items() and config["device"] == "cpu" and config["compile"] is False
    assert {"lr": 0.01, "weight_decay": 0, "betas": [0.8, 0.9]}.items() <= config["settings"].items()


def test_again_is_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = trained(tmp_path)
    before = {path.name: path.read_bytes() for path in record.folder.iterdir() if path.name != ".lock"}
    for options in ((), ("--resume",)):
        trained(tmp_path, *options)
        assert "already finished, nothing to do" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in record.folder.iterdir() if path.name != ".lock"} == before


def at_step(monkeypatch: pytest.MonkeyPatch, wanted: int, do: Callable[[], None]) -> None:
    shown = TrainingDisplay.on_step

    def on_step(self: TrainingDisplay, metrics: StepMetrics) -> None:
        shown(self, metrics)
        if metrics.step == wanted:
            do()

    monkeypatch.setattr(TrainingDisplay, "on_step", on_step)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_and_gone_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    whole = trained(tmp_path / "whole")
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    command = [*SMALL, "--out", str(tmp_path / "parts")]
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: signal.raise_signal(number))
        assert cli.main(command) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    err = capfd.readouterr().err
    assert "stopping after this step" in err and f"to resume: arturo {' '.join(command)} --resume" in err

    assert cli.main(command) == 2
    err = capfd.readouterr().err
    assert "holds an interrupted run, 0 of 2 epochs; add --resume to resume it" in err and err.count("\n") == 1
    assert timeless(trained(tmp_path / "parts", "--resume")) == timeless(whole)


def test_goes_on_after_an_epoch_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: signal.raise_signal(signal.SIGINT))
        assert cli.main([*SMALL, "--out", str(tmp_path)]) == 130
    capsys.readouterr()
    trained(tmp_path, "--resume")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "resuming after epoch 1" and [line.split()[0] for line in out[3:-1]] == ["2"]


def test_resume_of_nothing_starts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: signal.raise_signal(signal.SIGINT))
        assert cli.main([*SMALL, "--out", str(tmp_path), "--set", "lr=0.5"]) == 130
    (other,) = (tmp_path / "digits-mlp").iterdir()
    capsys.readouterr()
    assert cli.main([*SMALL, "--out", str(tmp_path), "--resume"]) == 0  # the option was forgotten
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("nothing to resume in ") and first.endswith("; starting from the beginning")
    assert second == f"an interrupted run with other options: {other}"


def test_second_ctrl_c_stops_at_once() -> None:
    with interruptible() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop() and stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arturo_lab", "train", "digits-mlp", "--epochs", "2000", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()  # two lines of heading, the first epoch
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err and "--resume" in err
    (folder,) = tmp_path.glob("*/*")
    assert (folder / "checkpoint.pt").exists() and read_run(folder).status == "unfinished"


def test_diverged(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "wild", OptimizerEntry("wild", "", lambda: SGD, {"lr": 1e25}))
    record = trained(tmp_path, "--optimizer", "wild")
    assert record.status == "diverged"
    assert "diverged" in capsys.readouterr().out
    ((variant,),) = (section.variants for section in sections([record]))
    assert variant.over == {0} and variant.values == {} and variant.estimate is None  # it counts, and has no number


def test_amp_and_compile_reach_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, half = trained(tmp_path / "full"), trained(tmp_path / "half", "--amp", "bf16")
    difference = abs(full.rows[-1]["train_loss"] - half.rows[-1]["train_loss"])
    assert 0 < difference < 0.05

    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    assert timeless(trained(tmp_path / "compiled", "--compile")) == timeless(full)
    assert len(compiled) == 1


def test_download_before_training(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, cifar10: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = cifar10.write_archive(nowhere / "mirror")
    file = RemoteFile("https://official.invalid/" + archive.name, archive.stat().st_size, sha256(archive))
    monkeypatch.setitem(DATA, "cifar10", replace(DATA["cifar10"], files=(file,)))
    command = ["train", "cifar10-cnn", "--epochs", "1", "--subset", "8", "--out", str(nowhere / "runs")]
    assert cli.main(command) == 2
    assert not (nowhere / "runs").exists() and "arturo fetch cifar10" in capsys.readouterr().err
    assert cli.main([*command, "--download", "--mirror", (nowhere / "mirror").as_uri()]) == 0
    assert (nowhere / "cache" / "arturo" / archive.name).exists()
    new = nowhere / "new"  # named, so it goes there, wherever else the data lies
    again = [*command, "--seed", "1", "--data-dir", str(new)]
    assert cli.main(again) == 2 and f"data-dir: {new} does not exist" in capsys.readouterr().err
    assert cli.main([*again, "--download", "--mirror", (nowhere / "mirror").as_uri()]) == 0
    assert (new / archive.name).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set lrr=1", "set: unknown name 'lrr'; did you mean lr?"),
        ("--set lr=fast", "set lr: must be a number, got 'fast'"),
        ("--subset 0", "subset: must be an integer >= 1, got 0"),
        ("--subset 2000", "subset: digits-mlp has 1437 training examples, got 2000"),
        ("--batch-size -1", "batch_size: must be an integer >= 1, got -1"),
        ("--epochs -3", "epochs: must be an integer >= 1, got -3"),
        ("--seed -1", "seed: must be an integer >= 0, got -1"),
        ("--threads 0", "threads: must be an integer >= 1, got 0"),
        ("--device gpu", "device: must be a device of torch such as cpu, cuda or cuda:1, got 'gpu'"),
        ("--device cuda:77", "device: cuda:77 is not available here"),
        ("--device meta", "device: meta is not available here"),
        ("--amp fp8", "amp: unknown name 'fp8'"),
        ("--optimizer adam --set foreach=true fused=true", "set: adam does not take foreach=True, fused=True: `fused`"),
        ("--optimizer adam --set capturable=true", "set capturable: torch's adam cannot be trained with it"),
        ("--optimizer sgd --set differentiable=true", "set differentiable: torch's sgd cannot be trained with it"),
        ("--log tensorbord", "log: unknown name 'tensorbord'; did you mean tensorboard"),
        ("--checkpoint-seconds 0", "checkpoint-seconds: must be a number > 0, got 0.0"),
        ("--checkpoint-seconds nan", "checkpoint-seconds: must be a number > 0, got nan"),
        ("--optimizer artuto", "optimizer: unknown name 'artuto'; did you mean arturo"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_folder(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "digits-mlp", "--out", str(tmp_path / "runs"), *options.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"arturo: {message}") and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_missing_packages_name_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("wandb", "ivon"):
        monkeypatch.setitem(sys.modules, package, None)
    assert cli.main([*SMALL, "--out", str(tmp_path), "--log", "wandb"]) == 2
    assert "pip install 'arturo[loggers]'" in capsys.readouterr().err
    assert cli.main([*SMALL, "--out", str(tmp_path), "--optimizer", "ivon"]) == 2
    assert "pip install 'arturo[peers]'" in capsys.readouterr().err


def test_disk_and_lock_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main([*SMALL, "--out", str(tmp_path / "file")]) == 2
    assert "cannot write there (Not a directory); choose another --out" in capsys.readouterr().err

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(run, "_append", full)
        assert cli.main([*SMALL, "--out", str(tmp_path / "full")]) == 2
    err = capsys.readouterr().err
    assert "cannot write steps.jsonl (No space left on device)" in err and err.count("\n") == 1

    config = RunConfig.for_task("digits-mlp", "arturo", epochs=2, subset=96)
    with open_run(tmp_path / "locked", config):
        assert cli.main([*SMALL, "--out", str(tmp_path / "locked")]) == 2
    err = capsys.readouterr().err
    assert "is training here" in err and err.count("\n") == 1


def test_read_only_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    assert cli.main([*SMALL, "--out", str(tmp_path / "runs")]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_display_in_a_terminal() -> None:
    config = RunConfig.for_task("digits-mlp", "arturo", epochs=2)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with TrainingDisplay(config, console, done=1) as display:
        display.on_epoch(EpochMetrics(1, 2.0, 1.5, 0.75, 10.0, 0.999, 3.2, images_per_second=1234.0, seconds_test=2.0))
        display.on_step(StepMetrics(46, 2, loss=1.25, lr=1.0, eta=3.5, kl=0.5, bound=1.0, evaluations=1, skipped=0))
        display.progress.refresh()
        (bar,) = display.progress.tasks
        assert bar.completed == 46 and bar.total == 90
    shown = screen.getvalue()
    assert "0:00:12" in shown  # ten seconds of training and two of testing are left
    line = "loss 1.2500  accuracy 75.00%  KL/bound 0.5000  eta 3.5  1,234 images/s"
    assert line in shown and "epoch 2/2" in shown


def test_more_epochs_than_a_life_has() -> None:
    config = RunConfig.for_task("digits-mlp", "sgd", epochs=10**6)
    screen = io.StringIO()
    with TrainingDisplay(config, Console(file=screen)) as display:
        display.on_epoch(EpochMetrics(1, 1.0, 1.0, 0.5, seconds=1e5))
    assert "11574 days" in screen.getvalue()


@pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)], ids=lambda words: "".join(words) or "arturo")
def test_help_ends_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    out = capsys.readouterr().out
    examples = [line.strip() for line in out.partition("examples:\n")[2].splitlines()]
    examples = [line.replace("torchrun --nproc-per-node 2 -m arturo_lab", "arturo") for line in examples]
    assert stop.value.code == 0 and examples and all(line.startswith("arturo ") for line in examples)
    for line in examples:  # and they are right: parsed, their names known
        _, options = cli.parse(line.split()[1:])
        named = [getattr(options, "task", None), *getattr(options, "tasks", ())]
        assert all(task in TASKS for task in named if task)


@pytest.mark.parametrize("name", ["w[/b]x", "w[b]x"])
def test_paths_are_no_markup(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = trained(Path(name)).folder
    assert f": {folder}\n" in capsys.readouterr().out
    trained(Path(name))
    assert f"already finished, nothing to do; remove {folder} to train it again\n" in capsys.readouterr().out
    words = ["digits-mlp", "--optimizers", "arturo", "--seeds", "1", "--epochs", "2", "--subset", "96", "--out", name]
    assert cli.main(["compare", *words]) == 0
    assert f"page: {name}/report.html\n" in capsys.readouterr().out
    assert cli.main(["report", name, "--out", f"{name}/again"]) == 0
    assert f"numbers: {name}/again/summary.json\n" in capsys.readouterr().out


def test_result_is_json_without_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "wild", OptimizerEntry("wild", "", lambda: SGD, {"lr": 1e25}))
    folder = trained(tmp_path, "--optimizer", "wild").folder

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for name in ("metrics.jsonl", "steps.jsonl"):
        for line in (folder / name).read_text().splitlines():
            json.loads(line, parse_constant=refuse)
    json.loads((folder / "result.json").read_text(), parse_constant=refuse)
