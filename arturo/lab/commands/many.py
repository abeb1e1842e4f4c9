"""Many trainings with somebody watching: what ``compare`` and ``reproduce`` share."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from arturo.lab.commands.fetch import provide
from arturo.lab.config import RunConfig
from arturo.lab.interrupt import interruptible
from arturo.lab.overview import Overview
from arturo.lab.records import Problem, Record, RecordError, read_run
from arturo.lab.tasks import TASKS
from arturo.lab.train import available
from arturo.lab.wording import count
from arturo.lab.workers import OVER, found, train_all


def train_many(configs: Sequence[RunConfig], out: Path, jobs: int, arguments: argparse.Namespace, console: Console) -> int:
    """Train what is not over yet, with the overview on.

    Returns the command's exit code: 0 if all runs are over, 1 if some failed, 130 (as a shell counts) if interrupted.
    """
    before = [found(config, out) for config in configs]
    missing = [news.config for news in before if news.state == "waiting"]
    if reused := sum(news.reused for news in before):
        console.print(f"already there: {reused} of {count(len(configs), 'run')}", highlight=False)
    for device in dict.fromkeys(config.device for config in missing):
        available(device)
    for name in dict.fromkeys(TASKS[config.task].data for config in missing):
        provide(name, arguments, console)  # what is wrong with it is said now, once

    with interruptible() as stop, Overview(configs, jobs, console) as overview:
        last = train_all(configs, out, jobs, data_dir=arguments.data_dir, on_news=overview.on_news, stop=stop)
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
