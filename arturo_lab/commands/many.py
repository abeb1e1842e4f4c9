"""Many trainings with somebody watching: what ``compare`` and ``reproduce`` share."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from arturo_lab.commands.arguments import jobs
from arturo_lab.commands.fetch import provide
from arturo_lab.errors import ConfigError
from arturo_lab.pool.board import OVER, News, found
from arturo_lab.pool.overview import Overview
from arturo_lab.pool.workers import train_all
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Problem, Record, RecordError, read_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.train import available


class Crew(NamedTuple):
    """Who trains."""

    train_all: Callable[..., list[News]]  # called like arturo_lab.pool.workers.train_all
    jobs: int  # at the same time
    elsewhere: bool  # on other machines, whose devices are not ours


@contextmanager
def crew(arguments: argparse.Namespace, configs: Sequence[RunConfig], at_once: int | None = None) -> Iterator[Crew]:
    """Processes of this machine, ``--jobs`` or ``at_once`` of them; with ``--ray`` the nodes of a cluster."""
    wanted = at_once or jobs(arguments)
    if arguments.ray is None:
        yield Crew(train_all, wanted or 1, elsewhere=False)
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("ray: needs Ray; to install it: pip install 'arturo[ray]'")
    from arturo_lab.pool.cluster import connected

    with connected(arguments.ray) as cluster:
        yield Crew(cluster.train_all, wanted or cluster.capacity(configs), elsewhere=True)


def train_many(
    configs: Sequence[RunConfig], out: Path, arguments: argparse.Namespace, console: Console, at_once: int | None = None
) -> int:
    """Train what is not over yet, with the overview on.

    Returns the command's exit code: 0 if all runs are over, 1 if some failed, 130 (as a shell counts) if interrupted.
    """
    jobs(arguments)  # a mistake is said before anything is read
    before = [found(config, out) for config in configs]
    missing = [news.config for news in before if news.state == "waiting"]
    if reused := sum(news.reused for news in before):
        console.print(f"already there: {reused} of {count(len(configs), 'run')}", highlight=False)
    for name in dict.fromkeys(TASKS[config.task].data for config in missing):
        provide(name, arguments, console)  # what is wrong with it is said now, once

    with interruptible() as stop, crew(arguments, missing, at_once) as who:
        for device in dict.fromkeys(config.device for config in missing if not who.elsewhere):
            available(device)
        with Overview(configs, who.jobs, console) as overview:
            last = who.train_all(configs, out, who.jobs, data_dir=arguments.data_dir, on_news=overview.on_news, stop=stop)
    failed = [news for news in last if news.state == "failed"]
    for news in failed:
        print(news.details, end="", file=sys.stderr)
    if failed:
        print(f"arturo: {len(failed)} of {count(len(last), 'run')} failed; the same command tries again", file=sys.stderr)
    if stop() and any(news.state not in (*OVER, "failed") for news in last):
        print(f"arturo: interrupted; to go on: {shlex.join(['arturo', *arguments.argv])}", file=sys.stderr)
        return stop.exit_code
    return 1 if failed else 0


def read_all(configs: Sequence[RunConfig], out: Path) -> tuple[list[Record], list[Problem]]:
    """The runs of these configs as far as they are there, and those that cannot be read."""
    records, problems = [], []
    for config in configs:
        path = Path(config.task) / config.name
        try:
            records.append(read_run(out / path))
        except FileNotFoundError:
            continue
        except (RecordError, OSError) as error:
            problems.append(Problem(path, str(error)))
    return records, problems


def shown(argv: Sequence[str]) -> str:
    """The command as it stands on the page and in summary.json: without the folders, which are nobody else's."""
    words = list(argv)
    for option in ("--out", "--data-dir"):
        while option in words:
            at = words.index(option)
            del words[at : at + 2]
    words = [word for word in words if not word.startswith(("--out=", "--data-dir="))]
    return shlex.join(["arturo", *words])
