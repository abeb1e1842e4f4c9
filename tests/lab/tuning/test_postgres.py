"""Two workers at once on a real PostgreSQL, one of them killed: every trial is done, and counts once."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from arturo_lab import cli
from arturo_lab.runs.share import Share
from arturo_lab.tuning.outcome import read_rows
from arturo_lab.tuning.protocols import Search
from arturo_lab.tuning.study import open_storage

TRIALS = 4
SEARCH = shlex.split("digits-mlp --optimizer sgd --protocol fair --folds 2 --epochs 40 --subset 96 --studies 1 --no-prune")


def program(name: str) -> str | None:
    """Debian keeps the server's programs out of the path."""
    found = shutil.which(name)
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(beside[-1]) if beside else None)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an empty database on a server of our own, reachable through a socket in a temporary folder."""
    initdb, postgres, pg_ctl = program("initdb"), program("postgres"), program("pg_ctl")
    if initdb is None or postgres is None or pg_ctl is None:
        pytest.skip("needs PostgreSQL's server: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'arturo[dev]'")
    user: str | None = None
    if os.geteuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = "postgres" if "postgres" in names else "nobody"
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
    if user is not None:
        shutil.chown(folder, user)

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder)

    try:
        run(initdb, "-D", f"{folder}/data", "-A", "trust", "-U", "arturo", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        run(pg_ctl, "-D", f"{folder}/data", "-o", options, "-l", f"{folder}/log", "-w", "start")
        try:
            yield f"postgresql+psycopg://arturo@/postgres?host={folder}"
        finally:
            run(pg_ctl, "-D", f"{folder}/data", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_two_workers_and_a_death(server: str, tmp_path: Path) -> None:
    def worker(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "arturo_lab", "tune", *SEARCH, "--trials", str(TRIALS), "--worker", "--heartbeat", "1"]
        out = str(tmp_path / f"{name}.json")
        return subprocess.Popen([*command, "--storage", server, "--out", out], stdout=subprocess.PIPE, text=True)

    first, second = worker("first"), worker("second")
    with open_storage(server, heartbeat=1) as storage:
        study = storage.study(Search("digits-mlp", "sgd", "fair", 2, 1, Share(40, 32, 96)))

        def trials_of(process: subprocess.Popen[str], state: TrialState) -> list[str]:
            """The slots of a worker's trials."""
            found = [t for t in study.get_trials(deepcopy=False) if t.state == state]
            return [t.user_attrs["slot"] for t in found if t.user_attrs.get("worker") == process.pid]

        while not (lost := trials_of(first, TrialState.RUNNING)):
            assert first.poll() is None and second.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        second.communicate()
        assert second.returncode == 0

        done = trials_of(first, TrialState.COMPLETE) + trials_of(second, TrialState.COMPLETE)
        assert sorted(done) == [str(i) for i in range(TRIALS)]
        assert trials_of(first, TrialState.FAIL) == lost and set(lost) <= set(trials_of(second, TrialState.COMPLETE))
        assert not [t for t in study.get_trials(deepcopy=False) if t.state == TrialState.RUNNING]

    # The one that writes the result finds nothing left to do.
    command = ["tune", *SEARCH, "--trials", str(TRIALS), "--storage", server, "--test-seeds", "0"]
    assert cli.main([*command, "--out", str(tmp_path / "found.json")]) == 0
    assert len(read_rows(tmp_path / "found" / "trials.jsonl")) == TRIALS
