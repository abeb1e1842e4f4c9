"""A run is a folder, ``OUT/TASK/OPTIMIZER-seedS-HASH/``:

    config.json        everything that decides the numbers
    environment.json   versions, machine, revision, digests of data and code (arturo_lab.runs.provenance)
    metrics.jsonl      a row per epoch (arturo_lab.training.epoch.EpochMetrics); with --validation or --fold its test_... are of
                       the part of the training images that is held out
    steps.jsonl        a row per step (arturo_lab.training.epoch.StepMetrics)
    checkpoint.pt      to resume from; weights under "model"
    result.json        when it is over: status, the metric that counts, test_loss and others, train_loss, epochs, seconds; with
                       --validation test_... are of the test set, looked at once, and validation_... the last epoch's

Rows are appended before the checkpoint that counts them. A process may die at any point: rows beyond the checkpoint are cut
off when the run is resumed, and come again, bit for bit. Whatever else does not fit is an error, and nothing is overwritten.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from arturo_lab.errors import ConfigError, RunError
from arturo_lab.runs import atomic
from arturo_lab.runs.config import FORMAT, RunConfig
from arturo_lab.runs.environment import environment
from arturo_lab.runs.lock import Locked, locked
from arturo_lab.runs.provenance import differences
from arturo_lab.runs.records import RecordError, epoch_rows, number, parse_rows, read_object, read_result, read_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.epoch import EpochMetrics, StepMetrics, as_row, from_row

NOTHING_CHANGED = "nothing was changed. Repair it, or remove the folder to train it again"


class RunFolder:
    """A run folder that this process writes to. Made by :func:`open_run`, which holds the lock."""

    def __init__(self, path: Path, config: RunConfig, checkpoint_seconds: float | None = None) -> None:
        self.path = path
        self.config = config
        self.result: dict[str, Any] | None = None
        self.checkpoint_seconds = checkpoint_seconds  # None: after epochs only
        self._steps: FileIO | None = None
        self._metrics: FileIO | None = None
        self._saved = time.monotonic()

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.path / "checkpoint.pt").exists()

    @property
    def epochs_done(self) -> int:
        """How many epochs are written down."""
        with _reading(self.path):
            return len(read_run(self.path).rows)

    def begin(self, made_with: Mapping[str, Any] | None = None) -> tuple[list[EpochMetrics], dict[str, Any] | None]:
        """The epochs so far and the checkpoint, or ([], None); rows beyond the checkpoint are cut off.

        Args:
            made_with: see :mod:`arturo_lab.runs.provenance`. A run that was begun with something else is not resumed.
        """
        made_with = dict(made_with or {})
        if self.started and (changed := differences(self.made_with, made_with)):
            raise RunError(made_otherwise(self.path, changed))
        captured = self.read_checkpoint() if self.started else None
        sizes = {"metrics": 0, "steps": 0} if captured is None else captured["sizes"]
        if captured is None and (lost := self.path / "metrics.jsonl").exists() and lost.read_bytes().count(b"\n") > 1:
            raise RunError(f"{lost}: has epochs and no checkpoint.pt to resume from; {NOTHING_CHANGED}")
        with _reading(self.path):
            rows = epoch_rows(self._up_to("metrics.jsonl", sizes["metrics"]), "metrics.jsonl")
            parse_rows(self._up_to("steps.jsonl", sizes["steps"]), "steps.jsonl")
        try:
            history = [from_row(row) for row in rows]
        except (TypeError, KeyError) as error:
            raise RunError(f"{self.path}/metrics.jsonl: not the rows of this version ({error}); {NOTHING_CHANGED}") from error
        with self._writing("environment.json"):
            atomic.write_json(self.path / "environment.json", self._environment(made_with))
        with self._writing("metrics.jsonl"):
            self._metrics = _append_from(self.path / "metrics.jsonl", sizes["metrics"])
        with self._writing("steps.jsonl"):
            self._steps = _append_from(self.path / "steps.jsonl", sizes["steps"])
        self._saved = time.monotonic()
        return history, captured

    def write_step(self, metrics: StepMetrics) -> None:
        with self._writing("steps.jsonl"):
            _append(self._steps, as_row(metrics))

    def write_epoch(self, metrics: EpochMetrics) -> None:
        with self._writing("metrics.jsonl"):
            _append(self._metrics, as_row(metrics))

    def checkpoint_is_due(self) -> bool:
        return self.checkpoint_seconds is not None and time.monotonic() - self._saved >= self.checkpoint_seconds

    def save(self, captured: dict[str, Any]) -> None:
        """Make ``captured`` and the rows so far what the run resumes from."""
        assert self._metrics is not None and self._steps is not None
        with self._writing("checkpoint.pt"):
            for rows in (self._metrics, self._steps):
                os.fsync(rows.fileno())
            sizes = {"metrics": self._metrics.tell(), "steps": self._steps.tell()}
            with atomic.replacing(self.path / "checkpoint.pt") as stream:
                torch.save({"format": FORMAT, "config": self.config.key, "sizes": sizes, **captured}, stream)
        self._saved = time.monotonic()

    def finish(self, status: str, history: Sequence[EpochMetrics], test: Mapping[str, float] | None = None) -> None:
        """Write result.json: the last epoch's numbers.

        With ``config.share.validation`` these are called ``validation_...``, and ``test`` has the metrics of the test set by
        name; None: the run diverged before it was looked at.
        """
        row, metric = as_row(history[-1]), TASKS[self.config.task].metric
        validation = {}
        if self.config.share.validation is not None:
            measured = [key for key in row if key.startswith("test_")]
            validation = {f"validation_{key.removeprefix('test_')}": row[key] for key in measured}
            row |= {key: number((test or {}).get(key.removeprefix("test_"))) for key in measured}
        self.result = {
            "status": status,
            "metric": {**metric.described(), "value": row[metric.key]},
            **{key: row[key] for key in row if key.startswith("test_")},
            **validation,
            "train_loss": row["train_loss"],
            "epochs": len(history),
            "seconds": row["wall_seconds"],
        }
        with self._writing("result.json"):
            atomic.write_json(self.path / "result.json", self.result)

    def close(self) -> None:
        for rows in (self._metrics, self._steps):
            if rows is not None:
                rows.close()

    def _up_to(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file. None may be missing: a checkpoint counts on them."""
        path = self.path / name
        raw = path.read_bytes()[:size] if size and path.exists() else b""
        if len(raw) < size:
            raise RunError(f"{path}: {len(raw)} bytes are left of {size} that checkpoint.pt counts on; {NOTHING_CHANGED}")
        return raw

    def read_checkpoint(self) -> dict[str, Any]:
        path = self.path / "checkpoint.pt"
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()  # torch.load does not look at the checksums
            if damaged is not None:
                raise ValueError(f"wrong checksum of {damaged}")
            captured = torch.load(path, map_location="cpu", weights_only=True)
            keys = captured["format"], captured["config"], captured["sizes"]
        except pickle.UnpicklingError as error:  # torch's message advises to load it all the same
            raise RunError(f"{path}: corrupt checkpoint (not only tensors and plain data); {NOTHING_CHANGED}") from error
        except Exception as error:  # whatever the bytes happen to mean
            raise RunError(f"{path}: corrupt checkpoint ({type(error).__name__}: {error}); {NOTHING_CHANGED}") from error
        if keys[0] != FORMAT:
            raise RunError(f"{path}: has format {keys[0]}, this version reads {FORMAT}; {NOTHING_CHANGED}")
        if keys[1] != self.config.key:
            raise RunError(f"{path}: belongs to the config {keys[1]}, not to {self.config.key}; {NOTHING_CHANGED}")
        return captured  # type: ignore[no-any-return]

    @property
    def made_with(self) -> dict[str, Any]:
        """What it was begun with; empty if it does not say."""
        with _reading(self.path):
            return recorded(self.path)

    def accept(self, made_with: Mapping[str, Any]) -> None:
        """Resume with something else than it was begun with; environment.json keeps what that was."""
        with _reading(self.path):
            known = read_object(self.path / "environment.json")
        before = [*known.get("made_before_with", []), known.get("made_with", {})]
        with self._writing("environment.json"):
            atomic.write_json(
                self.path / "environment.json", {**known, "made_with": dict(made_with), "made_before_with": before}
            )

    def _environment(self, made_with: dict[str, Any]) -> dict[str, Any]:
        """That of the first start; where a later one differs, what it differed in."""
        now = {**environment(self.config.machine.device), "made_with": made_with}
        path = self.path / "environment.json"
        if not (self.started and path.exists()):
            return now
        with _reading(self.path):
            first = read_object(path)
        changed = {key: value for key, value in now.items() if first.get(key) != value}
        return {**first, "resumed_with": [*first.get("resumed_with", []), changed]} if changed else first

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """A full disk, a folder without permission: a message of one line."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            cause = _os_error(error)
            if cause is None:
                raise
            raise RunError(
                f"{self.path}: cannot write {name} ({cause.strerror}); earlier files are intact; "
                "free some space or fix the permissions, then resume"
            ) from error


@contextmanager
def open_run(out: Path, config: RunConfig, checkpoint_seconds: float | None = None) -> Iterator[RunFolder]:
    """The folder of ``config`` under ``out``, made if need be, for this process alone inside the block.

    Raises:
        RunError: another process has it, it belongs to another config, its config cannot be read, or it cannot be written.
    """
    path = out / config.folder
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path / ".lock"))
            if (path / "config.json").exists():
                _check_same(path, _read_config(path), config)
            elif (path / "checkpoint.pt").exists() or (path / "metrics.jsonl").exists():
                raise RunError(f"{path}: has no config.json; {NOTHING_CHANGED}")
            else:
                atomic.write_json(path / "config.json", config.to_json())
            run = RunFolder(path, config, checkpoint_seconds)
            with _reading(path):
                run.result = read_result(path)
        except Locked as error:
            raise RunError(f"{path}: {error} is training here; wait for it, or use another --out") from error
        except OSError as error:
            raise RunError(f"{path}: cannot write there ({error.strerror or error}); choose another --out") from error
        stack.callback(run.close)
        yield run


def recorded(folder: Path) -> dict[str, Any]:
    """What the run in ``folder`` was made with; empty if it does not say. Raises RecordError for what cannot be read."""
    if not (folder / "environment.json").exists():
        return {}
    values = read_object(folder / "environment.json").get("made_with", {})
    return values if isinstance(values, dict) else {}


def made_otherwise(path: Path, changed: Sequence[str]) -> str:
    """The one line that names what differs, and the ways out."""
    return (
        f"{path}: made with other code, data or threads ({'; '.join(changed)}); remove the folder or choose another --out "
        "to train it again, or add --reuse to use it as it is"
    )


def set_aside(path: Path) -> Path:
    """Make room for another run of the same config: its files go to ``before-1``, ``before-2``, ... in its folder.

    Their config.json is called ``config.before.json`` from then on, so that they are not mistaken for a run.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path / ".lock"))
            number = next(n for n in itertools.count(1) if not (path / f"before-{n}").exists())
            aside = path / f"before-{number}"
            files = [each for each in path.iterdir() if each.name != ".lock" and not each.name.startswith("before-")]
            aside.mkdir()
            # config.json first: without it the folder is no run, whatever happens to the others.
            for each in sorted(files, key=lambda each: each.name != "config.json"):
                each.rename(aside / each.name.replace("config.json", "config.before.json"))
        except Locked as error:
            raise RunError(f"{path}: {error} is training here; wait for it, or use another --out") from error
        except OSError as error:
            raise RunError(f"{path}: cannot move its files aside ({error.strerror or error})") from error
    return aside


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """What cannot be read stays as it is, and the message says where."""
    try:
        yield
    except RecordError as error:
        raise RunError(f"{folder}/{error}; {NOTHING_CHANGED}") from error


def _read_config(folder: Path) -> RunConfig:
    with _reading(folder):
        values = read_object(folder / "config.json")
    try:
        return RunConfig.from_json(values)
    except (ConfigError, TypeError) as error:
        raise RunError(f"{folder}/config.json: not a config of this version: {error}; {NOTHING_CHANGED}") from error


def _check_same(path: Path, stored: RunConfig, wanted: RunConfig) -> None:
    theirs, ours = stored.identity(), wanted.identity()
    theirs.update(theirs.pop("settings"))
    ours.update(ours.pop("settings"))
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    if keys:
        differing = "; ".join(f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here" for key in keys)
        raise RunError(f"{path}: a run of another config ({differing}); {NOTHING_CHANGED}")


def _append_from(path: Path, size: int) -> FileIO:
    """An unbuffered stream at ``size``, beyond which the file is cut off."""
    stream = FileIO(path, "r+" if path.exists() else "w+")
    stream.truncate(size)
    stream.seek(size)
    return stream


def _append(stream: FileIO | None, row: dict[str, Any]) -> None:
    assert stream is not None, "begin() comes first"
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    while line:  # a nearly full disk takes a part
        line = line[stream.write(line) :]


def _os_error(error: BaseException) -> OSError | None:
    """The operating system's word in a chain of exceptions: torch.save wraps it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return seen
