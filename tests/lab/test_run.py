"""Run folders: what is in them, and that no death at any point costs more than the time since the last checkpoint."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from arturo_lab.data import loading
from arturo_lab.data.augment import Pixels
from arturo_lab.errors import RunError
from arturo_lab.optimizers import curvature
from arturo_lab.optimizers.catalog import OPTIMIZERS, OptimizerEntry
from arturo_lab.runs import atomic, run
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import RecordError, read_run
from arturo_lab.runs.run import open_run
from arturo_lab.tasks import models
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.train import evaluate, train

DIGITS = loading.load("digits")
# The noisy task has a batch norm, for which there is no exact diagonal; tests/lab/test_curvature.py resumes those without.
ANY = [name for name, entry in OPTIMIZERS.items() if entry.instrument is not curvature.extend]


@pytest.fixture(autouse=True)
def _noisy_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything random that a run can have: dropout, crops, flips."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.1), models.digits_mlp(), nn.BatchNorm1d(10))

    monkeypatch.setitem(TASKS, "noisy", replace(TASKS["digits-mlp"], model=model, inputs=Pixels(crop="zero", flip=True)))


def config(optimizer: str = "sgd", epochs: int = 3, subset: int = 96, **options: Any) -> RunConfig:
    return RunConfig.for_task("noisy", optimizer, epochs=epochs, subset=subset, **options)


def go(out: Path, config: RunConfig, **options: Any) -> Path:
    """Train or resume; the folder."""
    checkpoint_seconds = options.pop("checkpoint_seconds", None)
    with open_run(out, config, checkpoint_seconds) as folder:
        train(config, DIGITS, run=folder, **options)
        return folder.path


def outcome(folder: Path) -> tuple[Any, ...]:
    """Everything in the folder that must not depend on interruptions."""
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    sizes = checkpoint.pop("sizes")
    assert sizes["steps"] == (folder / "steps.jsonl").stat().st_size
    assert sizes["metrics"] == (folder / "metrics.jsonl").stat().st_size
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    timeless = [{key: value for key, value in row.items() if "second" not in key} for row in [*rows, result]]
    return bits(checkpoint), timeless, (folder / "steps.jsonl").read_text(), (folder / "config.json").read_text()


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, (list, tuple)) else value


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# What a run folder is


def test_files_and_keys(tmp_path: Path) -> None:
    wanted = config("arturo")
    folder = go(tmp_path, wanted)
    assert folder == tmp_path / "noisy" / f"arturo-seed0-{wanted.key}"
    names = [".lock", "checkpoint.pt", "config.json", "environment.json", "metrics.jsonl", "result.json", "steps.jsonl"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert json.loads((folder / "config.json").read_text()) == wanted.to_json()
    assert {"python", "torch", "arturo", "cpu", "threads", "revision"} <= set(
        json.loads((folder / "environment.json").read_text())
    )

    record = read_run(folder)
    assert RunConfig.from_json(record.config) == wanted and record.series("epoch") == [1, 2, 3]
    last = record.rows[-1]
    assert record.result == {
        "status": "finished",
        "metric": {"name": "test_accuracy", "unit": "fraction", "better": "higher", "value": last["test_accuracy"]},
        "test_accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
        "train_loss": last["train_loss"],
        "epochs": 3,
        "seconds": last["wall_seconds"],
    }
    assert 0 < record.result["test_accuracy"] < 1
    assert last["wall_seconds"] == pytest.approx(sum(record.series("seconds")))
    parts = sum(last[f"seconds_{part}"] for part in ("data", "forward", "backward", "optimizer"))
    assert 0 < parts <= last["seconds"] and last["images_per_second"] == pytest.approx(96 / last["seconds"])

    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps] == list(range(1, 10)) and [row["epoch"] for row in steps] == [
        1,
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
    ]
    assert all(row["kl"] <= 1.001 * row["bound"] and row["eta"] >= 0 and row["evaluations"] >= 1 for row in steps)
    assert steps[0]["lr"] == 1.0 and steps[-1]["lr"] < 0.1
    assert sum(row["loss"] for row in steps[-3:]) / 3 == pytest.approx(last["train_loss"])
    plain = [json.loads(line) for line in (go(tmp_path, config("sgd")) / "steps.jsonl").read_text().splitlines()]
    assert set(plain[0]) == {"step", "epoch", "loss", "lr"}


@pytest.mark.parametrize("optimizer", ["sgd", "schedulefree-adamw", "ivon"])
def test_weights_in_the_checkpoint_give_the_result(optimizer: str, tmp_path: Path) -> None:
    """Not those between two steps, where an optimizer trains other weights than it tests."""
    folder = go(tmp_path, config(optimizer))
    model = TASKS["noisy"].model()
    model.load_state_dict(torch.load(folder / "checkpoint.pt", weights_only=True)["model"])
    result = read_run(folder).result
    measured = evaluate(model, DIGITS.test_inputs, DIGITS.test_targets, TASKS["digits-mlp"])
    assert measured == {"loss": result["test_loss"], "accuracy": result["test_accuracy"]}


# Death and what comes after


class Died(BaseException):
    pass


@contextmanager
def dying_at(n: int) -> Iterator[list[int]]:
    """Die at the n-th thing done to the disk, in the middle of a row where it is a row. Yields the count of such things."""
    count = [0]
    originals = os.fsync, os.replace, run._append

    def passing(original: Callable[..., Any], half: bool = False) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            count[0] += 1
            if count[0] == n:
                if half:
                    stream, row = arguments
                    stream.write(json.dumps(row).encode()[:10])
                raise Died
            return original(*arguments)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", passing(originals[0]))
        patch.setattr(os, "replace", passing(originals[1]))
        patch.setattr(run, "_append", passing(originals[2], half=True))
        yield count


def test_death_at_every_point(tmp_path: Path) -> None:
    wanted = config("arturo", epochs=2, subset=64)
    with dying_at(0) as count:
        expected = outcome(go(tmp_path / "whole", wanted))
    assert count[0] >= 25
    for n in range(1, count[0] + 1):
        out = tmp_path / str(n)
        with dying_at(n), pytest.raises(Died):
            go(out, wanted)
        for path in out.rglob("config.json"):  # and what a real death would leave lying about
            (path.parent / "checkpoint.pt.partial").write_bytes(b"half")
        assert outcome(go(out, wanted)) == expected, n


def stopped_everywhere(tmp_path: Path, wanted: RunConfig) -> tuple[Any, ...]:
    """What comes out if the run is stopped after every step and every epoch but the last, once per process."""
    for _ in range(wanted.epochs * wanted.steps_per_epoch + wanted.epochs - 1):
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "parts", wanted, stop=lambda: True)
    return outcome(go(tmp_path / "parts", wanted, stop=lambda: True))


@pytest.mark.parametrize("optimizer", ANY)
def test_stopped_in_the_middle_of_an_epoch(optimizer: str, tmp_path: Path) -> None:
    expected = outcome(go(tmp_path / "whole", config(optimizer)))
    assert stopped_everywhere(tmp_path, config(optimizer)) == expected


@pytest.mark.parametrize("options", [{"channels_last": True}, {"amp": "bf16"}], ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "arturo"])
def test_stopped_with_options_of_the_machine(
    optimizer: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = replace(TASKS["noisy"], model=lambda: nn.Sequential(models.digits_cnn(), nn.Dropout(0.1)))
    monkeypatch.setitem(TASKS, "noisy", noisy)
    wanted = config(optimizer, epochs=2, subset=64, **options)
    assert stopped_everywhere(tmp_path, wanted) == outcome(go(tmp_path / "whole", wanted))


def test_checkpoints_by_time_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    save = run.RunFolder.save
    monkeypatch.setattr(
        run.RunFolder, "save", lambda self, captured: (saved.append(captured["epoch"]), save(self, captured))[1]
    )
    expected = outcome(go(tmp_path / "whole", config("schedulefree-adamw")))
    assert saved == [None] * 3
    assert outcome(go(tmp_path / "often", config("schedulefree-adamw"), checkpoint_seconds=1e-9)) == expected
    assert len(saved) == 3 + 3 + 9


KILLER = """
import os, pathlib, signal, sys, time
import sklearn.datasets, torch._dynamo  # slow to import: once, not in every child
from arturo_lab import cli

command = "train digits-mlp --epochs 4 --subset 320 --checkpoint-seconds 0.001".split()
command += ["--optimizer", sys.argv[2], "--out"]


def start(out):
    pid = os.fork()  # nothing was computed yet, so there is no thread to lose
    if pid == 0:
        os._exit(cli.main([*command, out, "--resume"]))
    return pid


for rows in map(int, sys.argv[3:]):  # killed when it has written so many
    pid = start(sys.argv[1] + "/killed")
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        files = list(pathlib.Path(sys.argv[1]).glob("killed/*/*/steps.jsonl"))
        if files and files[0].read_bytes().count(b"\\n") >= rows:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        time.sleep(0.001)
    else:
        sys.exit("ended before it was killed")
for out in ("killed", "whole"):
    assert os.waitpid(start(sys.argv[1] + "/" + out), 0)[1] == 0
"""


@pytest.mark.parametrize("optimizer", ["arturo", "adamw"])
def test_kill_9_at_random_points(optimizer: str, tmp_path: Path) -> None:
    """Real processes, really killed, in the middle of whatever they are doing. Then one that may end."""
    generator = torch.Generator().manual_seed(len(optimizer))
    rows = sorted(torch.randint(1, 32, (6,), generator=generator).tolist())  # of 40
    arguments = [sys.executable, "-c", KILLER, str(tmp_path), optimizer, *map(str, rows)]
    killer = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert killer.returncode == 0, killer.stderr
    (killed,), (whole,) = ((tmp_path / out / "digits-mlp").iterdir() for out in ("killed", "whole"))
    assert outcome(killed) == outcome(whole)
    assert len((whole / "steps.jsonl").read_text().splitlines()) == 40


def test_going_on_elsewhere_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, config(), stop=lambda: True)
    monkeypatch.setattr(torch, "__version__", "9.9")
    folder = go(tmp_path, config())
    described = read_run(folder).environment
    assert described["torch"] != "9.9" and described["resumed_with"] == [{"torch": "9.9"}]


# Divergence


def test_divergence_ends_the_run_and_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "wild", OptimizerEntry("wild", "", lambda: SGD, {"lr": 1e25}))
    folder = go(tmp_path / "whole", config("wild", epochs=5))
    record = read_run(folder)
    assert record.status == "diverged" and record.result["train_loss"] is None
    assert record.result["epochs"] == len(record.rows) < 5 and record.rows[-1]["train_loss"] is None
    assert json.loads((folder / "steps.jsonl").read_text().splitlines()[-1])["loss"] is None

    with pytest.MonkeyPatch.context() as patch:  # death between the last epoch and the result
        patch.setattr(run.RunFolder, "finish", lambda self, status, history, test: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            go(tmp_path / "late", config("wild", epochs=5))
    again = go(tmp_path / "late", config("wild", epochs=5))
    assert outcome(again)[1:3] == outcome(folder)[1:3]


@pytest.mark.parametrize("optimizer", ANY)
def test_a_loss_that_is_not_finite_never_crashes(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bomb(nn.Module):
        """NaN from the fifth training batch on."""

        seen = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += self.training
            return x * float("nan") if self.training and self.seen >= 5 else x

    monkeypatch.setitem(TASKS, "bomb", replace(TASKS["digits-mlp"], model=lambda: nn.Sequential(Bomb(), models.digits_mlp())))
    wanted = RunConfig.for_task("bomb", optimizer, epochs=4, subset=96)
    record = read_run(go(tmp_path, wanted))
    assert record.status == "diverged" and record.series("epoch") == [1, 2]


# What is refused


def test_another_process_is_training_here(tmp_path: Path) -> None:
    with (
        open_run(tmp_path, config()),
        pytest.raises(RunError, match=rf"process {os.getpid()} on .* is training here"),
        open_run(tmp_path, config()),
    ):
        pass
    with open_run(tmp_path, config()):  # let go of
        pass


def test_lock_of_a_dead_process_does_not_block(tmp_path: Path) -> None:
    code = f"""
import pathlib, time
from arturo_lab.runs.lock import locked
with locked(pathlib.Path({str(tmp_path / ".lock")!r})):
    print("locked", flush=True)
    time.sleep(600)
"""
    from arturo_lab.runs.lock import Locked, locked

    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    with pytest.raises(Locked, match=f"process {process.pid} on"), locked(tmp_path / ".lock"):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with locked(tmp_path / ".lock"):
        pass


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """The folder of a run that was stopped in its second epoch."""
    asked = iter([False] * 4 + [True])
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, config(), stop=lambda: next(asked))
    return tmp_path / "noisy" / config().name


def refused(folder: Path, message: str, wanted: RunConfig | None = None) -> None:
    """Going on is refused, and every byte is where it was."""
    before = contents(folder)
    with pytest.raises(RunError, match=message) as error:
        go(folder.parents[1], wanted or config())
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)
    assert contents(folder) == before


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "garbage", "no keys", "hostile"])
def test_corrupt_checkpoint(interrupted: Path, damage: str) -> None:
    path = interrupted / "checkpoint.pt"
    raw = bytearray(path.read_bytes())
    if damage == "flipped":
        raw[len(raw) // 2] ^= 1  # inside a weight, where only the checksum can tell
    elif damage == "no keys":
        torch.save({"something": 1}, path)
    elif damage == "hostile":
        torch.save({"format": 1, "config": config().key, "sizes": Exploit()}, path)
    if damage not in ("no keys", "hostile"):
        path.write_bytes({"empty": b"", "cut": raw[:-500], "flipped": raw, "garbage": b"\x80\x02garbage"}[damage])
    refused(interrupted, r"checkpoint\.pt: corrupt checkpoint .*nothing was changed")


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_checkpoint_of_another_config_or_format(interrupted: Path) -> None:
    path = interrupted / "checkpoint.pt"
    captured = torch.load(path, weights_only=True)
    torch.save({**captured, "config": "01234567"}, path)
    refused(interrupted, r"checkpoint\.pt: belongs to the config 01234567")
    torch.save({**captured, "format": 99}, path)
    refused(interrupted, r"checkpoint\.pt: has format 99, this version reads 2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", b"", "0 bytes are left of"),
        ("metrics.jsonl", None, "0 bytes are left of"),
        ("metrics.jsonl", b"x" * 100_000, "line 1 is corrupt"),
        ("metrics.jsonl", b"1" * 100_000, "line 1 must be an object, got int"),  # wherever it is cut
        ("steps.jsonl", b"{}\n", "3 bytes are left of"),
        ("steps.jsonl", b"{\n" * 100_000, "line 1 is corrupt"),
        ("config.json", b"{", "corrupt"),
        ("config.json", b"[]", "must be an object, got list"),
        ("config.json", b"{}", "has format 1, this version reads 2; nothing was changed. Repair it, or remove the folder"),
        ("config.json", b'{"format": 2}', "lacks task, optimizer"),
        ("config.json", None, r"has no config\.json"),
        ("environment.json", b"{", "corrupt"),
        ("result.json", b"{", "corrupt"),
        ("result.json", b"{}", "status must be finished or diverged, got None"),
        ("result.json", b'{"status": "finished", "test_accuracy": "x"}', "test_accuracy must be a number, got 'x'"),
    ],
)
def test_corrupt_files(interrupted: Path, name: str, content: bytes | None, message: str) -> None:
    if content is None:
        (interrupted / name).unlink()
    else:
        (interrupted / name).write_bytes(content)
    refused(interrupted, rf"{message}")


def test_epochs_without_a_checkpoint(tmp_path: Path) -> None:
    folder = go(tmp_path, config())
    (folder / "checkpoint.pt").unlink()
    (folder / "result.json").unlink()
    refused(folder, r"has epochs and no checkpoint\.pt to resume from")


def test_folder_of_another_config(interrupted: Path) -> None:
    other = config(overrides={"lr": 0.5})
    interrupted.rename(interrupted.with_name(other.name))
    refused(interrupted.with_name(other.name), r"a run of another config \(lr is 0\.1 there and 0\.5 here\)", wanted=other)


def test_reading_while_another_writes(interrupted: Path) -> None:
    with (interrupted / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 2, "train')
    record = read_run(interrupted)
    assert record.series("epoch") == [1] and record.status == "unfinished"
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        read_run(interrupted.parent)
    (interrupted / "metrics.jsonl").write_text("what\n")
    with pytest.raises(RecordError, match=r"^metrics\.jsonl: line 1 is corrupt"):
        read_run(interrupted)


# The disk


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever write it hits: one line, and after making room the run ends as if nothing had been."""
    expected = outcome(go(tmp_path / "whole", config()))

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for target, name in ((atomic.os, "fsync"), (atomic.os, "replace"), (run, "_append"), (torch, "save")):
        out = tmp_path / name
        with pytest.raises(KeyboardInterrupt):
            go(out, config(), stop=lambda: True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, full)
            with pytest.raises(RunError, match=r"cannot write [\w.]+ \(No space left on device\); earlier files are intact"):
                go(out, config())
        assert outcome(go(out, config())) == expected


def test_file_size_limit_in_the_middle_of_a_checkpoint(tmp_path: Path) -> None:
    """A real failed write inside torch.save, which wraps it in an error of its own."""
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, config(), stop=lambda: True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RunError, match=r"cannot write checkpoint\.pt \(File too large\)"):
            go(tmp_path, config())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome(go(tmp_path, config()))[1:] == outcome(go(tmp_path / "whole", config()))[1:]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write there \(Not a directory\); choose another --out"):
        go(tmp_path / "file", config())
