"""Many trainings with an overview in the terminal: what ``compare`` and ``reproduce`` share."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.status import Status
from rich.text import Text

from arturo_lab.commands.fetch import provide
from arturo_lab.commands.options import DataSource, PoolSize, check_out
from arturo_lab.commands.planning import Plan, PlannedRuns, Planning
from arturo_lab.data.examples import Examples
from arturo_lab.data.loading import Source
from arturo_lab.errors import ConfigError, DataNotFound
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.pool.cost import Cost, Kind, costs_of, kind_of
from arturo_lab.pool.overview import Overview
from arturo_lab.pool.status import OVER, RunStatus, status_of
from arturo_lab.pool.workers import threads_of_each, train_all
from arturo_lab.report.wording import count
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.provenance import code, differences
from arturo_lab.runs.records import RecordError
from arturo_lab.runs.run import RunFolder, recorded, set_aside
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.interrupt import interruptible
from arturo_lab.training.loggers import Logging
from arturo_lab.training.train import available

Extra = Callable[[Mapping[Kind, Cost]], float]


class Pool(NamedTuple):
    """Who trains."""

    train_all: Callable[..., list[RunStatus]]  # called like arturo_lab.pool.workers.train_all
    jobs: int  # at the same time


@contextmanager
def open_pool(size: PoolSize, configs: Sequence[RunConfig]) -> Iterator[Pool]:
    """Processes of this machine, or with ``--ray`` the nodes of a cluster."""
    if size.ray is None:
        yield Pool(train_all, size.jobs or 1)
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("ray: needs Ray; to install it: pip install 'arturo[ray]'")
    from arturo_lab.pool.cluster import connected

    with connected(size.ray) as cluster:
        yield Pool(cluster.train_all, size.jobs or cluster.capacity(configs))


@dataclass(frozen=True)
class RunSet:
    """Runs that are trained together."""

    configs: Sequence[RunConfig]
    out: Path
    size: PoolSize

    def missing(self, stale: Container[RunConfig] = ()) -> list[RunStatus]:
        """Those that are not over, and those that are to be trained again."""
        known = (RunStatus(c, "waiting") if c in stale else status_of(c, self.out) for c in self.configs)
        return [status for status in known if status.state == "waiting"]


def prepare(
    sets: Sequence[RunSet], planning: Planning, source: DataSource, console: Console, extra: Extra = lambda costs: 0.0
) -> dict[Kind, Cost] | None:
    """Check folders, data and devices, plan, and ask if it takes long. What runs cost; None: do not start.

    Results that are to be made again are set aside once the plan is approved.

    Args:
        extra: seconds of what comes after the trainings.
    """
    data: dict[Source, Examples] = {}
    costs: dict[Kind, Cost] = {}
    groups: list[PlannedRuns] = []
    stale: list[Stale] = []
    for each in sets:
        if not planning.plan:
            check_out(each.out)
        stale.append(find_stale(each, planning.reuse, source, data, console))
        missing = each.missing(() if planning.reuse else stale[-1].now)
        for name in dict.fromkeys(TASKS[status.config.task].data for status in missing):
            if name not in data:
                data[name] = provide(name, source, console)  # a problem with the data is reported now, once
        remote = each.size.ray is not None
        for device in dict.fromkeys(status.config.machine.device for status in missing if not remote):
            available(device)
        jobs = 1 if remote else min(each.size.jobs or 1, max(len(missing), 1))
        threads = threads_of_each(jobs)
        with console.status("measuring ...") as line:

            def on_measuring(config: RunConfig, line: Status = line) -> None:
                line.update(Text(f"measuring {config.task}, {OPTIMIZERS[config.optimizer].label} ..."))

            unfinished = [status.config for status in missing]
            costs |= costs_of(each.configs, each.out, {}) | costs_of(
                unfinished, each.out, {} if remote else data, threads, on_measuring
            )
        groups += planned(each.configs, missing, each.size.jobs or 1)
    plan = Plan(groups, costs, sets[0].out, extra(costs))
    if not plan.approved(planning, console):
        return None
    for each_stale in stale:
        each_stale.give_way(planning.reuse)
    return costs


@dataclass(frozen=True)
class Stale:
    """Runs made with other code, data or threads: what each would be made with now."""

    runs: RunSet
    now: Mapping[RunConfig, dict[str, Any]]

    def give_way(self, reuse: bool) -> None:
        """Set them aside; with ``reuse`` keep them, and note of those to resume what they go on with."""
        for config, made_with in self.now.items():
            folder = RunFolder(self.runs.out / config.folder, config)
            if not reuse:
                set_aside(folder.path)
            elif not (folder.path / "result.json").exists():
                folder.accept({**folder.made_with, **{key: value for key, value in made_with.items() if value is not None}})


def check_provenance(
    runs: RunSet, planning: Planning, source: DataSource, data: dict[Source, Examples], console: Console
) -> None:
    """Set aside what was made with other code, data or threads, and say so; with ``--reuse`` keep it."""
    find_stale(runs, planning.reuse, source, data, console).give_way(planning.reuse)


def find_stale(runs: RunSet, reuse: bool, source: DataSource, data: dict[Source, Examples], console: Console) -> Stale:
    """Say what was made with other code, data or threads; nothing is moved."""
    known = {config: known_of(runs.out / config.folder) for config in runs.configs}
    jobs = runs.size.jobs or 1
    reasons: dict[str, int] = {}
    stale = {}
    for config in (config for config, made in known.items() if made):
        task = TASKS[config.task]
        if task.data not in data:
            with suppress(DataNotFound):  # the runs exist; the data need not
                data[task.data] = provide(task.data, source, console)
        digest = data[task.data].digest if task.data in data else None
        threads = config.machine.threads or task.threads or threads_of_each(jobs) or torch.get_num_threads()
        now = {**code(config), "data": digest, "threads": None if runs.size.ray else threads}
        if changed := differences(known[config], now):
            reason = f"{config.task}, {OPTIMIZERS[config.optimizer].label}: {'; '.join(changed)}"
            reasons[reason] = reasons.get(reason, 0) + 1
            stale[config] = now
    what = "reused anyway" if reuse else "trained again; --reuse would keep the old ones"
    for reason, many in reasons.items():
        said = f"{count(many, 'run')} of {reason}; {what}"
        console.print(said, soft_wrap=True, highlight=False, markup=False, style="bold")
    return Stale(runs, stale)


def known_of(folder: Path) -> dict[str, Any]:
    """What a run was made with; nothing of one that cannot be read, whose status says so."""
    try:
        return recorded(folder)
    except RecordError:
        return {}


def planned(configs: Sequence[RunConfig], missing: Sequence[RunStatus], jobs: int) -> list[PlannedRuns]:
    """The runs of each kind, and what is left of them."""
    result = []
    for config in {kind_of(config): config for config in reversed(configs)}.values():
        kind = kind_of(config)
        left = [status for status in missing if kind_of(status.config) == kind]
        epochs = sum(status.config.epochs - status.epochs for status in left)
        result.append(PlannedRuns(config, len(left), epochs, sum(kind_of(each) == kind for each in configs), jobs))
    return result[::-1]


def train_many(
    runs: RunSet,
    costs: Mapping[Kind, Cost],
    source: DataSource,
    argv: Sequence[str],
    console: Console,
    log: Logging | None = None,
    on_status: Callable[[RunStatus], None] = lambda status: None,
) -> int:
    """Train what is not finished yet, with the overview on; :func:`prepare` has said how much that is.

    ``on_status`` is called with every change, after the overview.

    Returns the command's exit code: 0 if all runs are over, 1 if some failed, 130 (as a shell counts) if interrupted.
    """
    before = [status_of(config, runs.out) for config in runs.configs]
    missing = [status.config for status in before if status.state == "waiting"]
    if reused := sum(status.reused for status in before):
        console.print(f"reused: {reused} of {count(len(runs.configs), 'run')}", highlight=False)
    seconds = {kind: cost.epoch_seconds for kind, cost in costs.items()}
    with (
        interruptible() as stop,
        open_pool(runs.size, missing) as pool,
        Overview(runs.configs, pool.jobs, console, seconds) as overview,
    ):

        def tell(status: RunStatus) -> None:
            overview.on_status(status)
            on_status(status)

        last = pool.train_all(runs.configs, runs.out, pool.jobs, data_dir=source.data_dir, on_status=tell, stop=stop, log=log)
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
    """The command as it stands on the page and in summary.json: without the folders, which are of no use to others."""
    words = list(argv)
    for option in ("--out", "--data-dir"):
        while option in words:
            at = words.index(option)
            del words[at : at + 2]
    words = [word for word in words if not word.startswith(("--out=", "--data-dir="))]
    return shlex.join(["arturo", *words])
