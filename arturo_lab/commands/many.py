"""Many trainings with somebody watching: what ``compare`` and ``reproduce`` share."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from arturo_lab.commands.fetch import provide
from arturo_lab.commands.options import DataSource, PoolSize
from arturo_lab.errors import ConfigError
from arturo_lab.pool.overview import Overview
from arturo_lab.pool.status import OVER, RunStatus, status_of
from arturo_lab.pool.workers import train_all
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.train import available


class Pool(NamedTuple):
    """Who trains."""

    train_all: Callable[..., list[RunStatus]]  # called like arturo_lab.pool.workers.train_all
    jobs: int  # at the same time
    remote: bool  # on other machines, whose devices are not ours


@contextmanager
def open_pool(size: PoolSize, configs: Sequence[RunConfig]) -> Iterator[Pool]:
    """Processes of this machine, or with ``--ray`` the nodes of a cluster."""
    if size.ray is None:
        yield Pool(train_all, size.jobs or 1, remote=False)
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("ray: needs Ray; to install it: pip install 'arturo[ray]'")
    from arturo_lab.pool.cluster import connected

    with connected(size.ray) as cluster:
        yield Pool(cluster.train_all, size.jobs or cluster.capacity(configs), remote=True)


def train_many(
    configs: Sequence[RunConfig], out: Path, size: PoolSize, source: DataSource, argv: Sequence[str], console: Console
) -> int:
    """Train what is not finished yet, with the overview on.

    Returns the command's exit code: 0 if all runs are over, 1 if some failed, 130 (as a shell counts) if interrupted.
    """
    before = [status_of(config, out) for config in configs]
    missing = [status.config for status in before if status.state == "waiting"]
    if reused := sum(status.reused for status in before):
        console.print(f"reused: {reused} of {count(len(configs), 'run')}", highlight=False)
    for name in dict.fromkeys(TASKS[config.task].data for config in missing):
        provide(name, source, console)  # a problem with the data is reported now, once

    with interruptible() as stop, open_pool(size, missing) as pool:
        for device in dict.fromkeys(config.machine.device for config in missing if not pool.remote):
            available(device)
        with Overview(configs, pool.jobs, console) as overview:
            last = pool.train_all(configs, out, pool.jobs, data_dir=source.data_dir, on_status=overview.on_status, stop=stop)
    failed = [status for status in last if status.state == "failed"]
    for status in failed:
        print(status.details, end="", file=sys.stderr)
    if failed:
        print(f"arturo: {len(failed)} of {count(len(last), 'run')} failed; see above for the reasons", file=sys.stderr)
    if stop() and any(status.state not in (*OVER, "failed") for status in last):
        print(f"arturo: interrupted; to resume: {shlex.join(['arturo', *argv])}", file=sys.stderr)
        return stop.exit_code
    return 1 if failed else 0


def shown(argv: Sequence[str]) -> str:
    """The command as it stands on the page and in summary.json: without the folders, which are nobody else's."""
    words = list(argv)
    for option in ("--out", "--data-dir"):
        while option in words:
            at = words.index(option)
            del words[at : at + 2]
    words = [word for word in words if not word.startswith(("--out=", "--data-dir="))]
    return shlex.join(["arturo", *words])
