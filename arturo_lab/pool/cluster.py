"""Many trainings on a Ray cluster: the runs, statuses and numbers of :func:`arturo_lab.pool.workers.train_all`.

A run is one remote call. It trains in its run folder, which must be on storage that all nodes share (as Ray itself asks for
since 2.7), so everything else goes through files: how far the run is, its checkpoints, and whether to stop. A run whose worker
or node dies is resumed from its last checkpoint by another one.

Nodes need arturo and Ray in the same versions as here. Data is read here and handed over by Ray.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

import arturo
from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.errors import ConfigError, RunError
from arturo_lab.pool.control import Control, control_folder
from arturo_lab.pool.status import RunQueue, RunStatus, failed, status_of
from arturo_lab.pool.workers import CHECKPOINT_SECONDS, train_one
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.lock import Locked
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.interrupt import SIGNALS
from arturo_lab.training.loggers import Logging

ATTEMPTS = 5  # for each run; nodes come and go
LOOK_SECONDS = 0.2  # between two looks at what runs
LOCK_SECONDS = 60.0  # a process of a node that is considered dead may hold its run's folder so long

NO_CLUSTER = (
    "ray: no cluster at {} ({}); `ray start --head` makes this machine one, and its output has the command for further nodes"
)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The Ray cluster at ``address``, or with ``"auto"`` the one that this machine is a node of."""
    check_address(address)
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # otherwise Ray replaces print()
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
    quiet: dict[str, Any] = {} if address.startswith("ray://") else {"logging_level": logging.ERROR}  # its client takes none
    try:
        ray.init(address=address, namespace=f"arturo-{uuid.uuid4().hex}", log_to_driver=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(NO_CLUSTER.format(address, str(error).splitlines()[0])) from error
    finally:
        for number, handler in handlers.items():  # Ray takes some of them
            signal.signal(number, handler)
    try:
        yield Cluster()
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Whether there is somebody: Ray itself tries for minutes.

    Example:
        >>> check_address("auto")
        >>> check_address("head")
        Traceback (most recent call last):
        ...
        arturo_lab.errors.ConfigError: ray: must be auto, HOST:PORT or ray://HOST:PORT, got 'head'
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"ray: must be auto, HOST:PORT or ray://HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(NO_CLUSTER.format(address, error)) from error


def demand(config: RunConfig) -> dict[str, float]:
    """What a run takes of its node, as Ray counts it.

    Example:
        >>> demand(RunConfig.for_task("digits-mlp", "sgd", threads=2))
        {'CPU': 2, 'GPU': 0}
    """
    if config.machine.device.startswith("cuda:"):
        raise ConfigError(f"device: on a cluster Ray chooses the GPU; say cuda, got {config.machine.device}")
    return {"CPU": config.machine.threads or TASKS[config.task].threads or 1, "GPU": int(config.machine.device != "cpu")}


@dataclass
class Cluster:
    """A Ray cluster that this process is connected to. Made by :func:`connected`."""

    loaded: dict[loading.Source, ObjectRef[Any]] = field(default_factory=dict)  # data sets in Ray's memory

    def capacity(self, configs: Sequence[RunConfig]) -> int:
        """How many of these runs have room at the same time. An error if one of them never has."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        rooms = []
        for wanted in {tuple(demand(config).items()): demand(config) for config in configs}.values():
            room = sum(min(int(node.get(key, 0) // n) for key, n in wanted.items() if n) for node in nodes)
            if room == 0:
                sizes = ", ".join(f"{node.get('CPU', 0):.0f} CPUs and {node.get('GPU', 0):.0f} GPUs" for node in nodes)
                raise ConfigError(f"ray: a run takes {wanted['CPU']} CPUs and {wanted['GPU']} GPUs, the nodes have {sizes}")
            rooms.append(room)
        return max(rooms, default=1)

    def train_all(
        self,
        configs: Sequence[RunConfig],
        out: Path,
        jobs: int | None = None,
        *,
        data_dir: Path | None = None,
        checkpoint_seconds: float | None = CHECKPOINT_SECONDS,
        on_status: Callable[[RunStatus], None] = lambda status: None,
        stop: Callable[[], bool] = lambda: False,
        log: Logging | None = None,
    ) -> list[RunStatus]:
        """Like :func:`arturo_lab.pool.workers.train_all`, with the nodes' processes instead of ours.

        Args:
            jobs: at most so many at once; None leaves that to Ray.
        """
        queue = RunQueue(configs, out, ATTEMPTS, on_status)
        if not queue.waiting:
            return queue.last()
        self.capacity(list(queue.waiting))
        running: dict[ObjectRef[Any], RunConfig] = {}
        progress = Progress(out, queue)
        stopping = False
        with control_folder(out) as control:
            while queue.waiting or running:
                if stop() and not stopping:
                    stopping = True
                    queue.waiting.clear()
                    control.stop()
                    for ref, config in running.items():
                        if not control.has_begun(config.name):  # perhaps no node has room for it
                            ray.cancel(ref)
                while queue.waiting and len(running) < (jobs or len(configs)):
                    config = queue.take()
                    progress.begin(config)
                    again = queue.attempts[config] > 1
                    ref = self.submit(config, out.resolve(), control, data_dir, checkpoint_seconds, again, log)
                    running[ref] = config
                progress.look(running.values())
                for ref in ray.wait(list(running), timeout=LOOK_SECONDS)[0] if running else []:
                    config = running.pop(ref)
                    try:
                        queue.update(ray.get(ref))
                    except TaskCancelledError:  # before it began
                        pass
                    except RayTaskError as error:
                        queue.update(failed(config, error))
                    except RayError as error:  # its process or its node is gone
                        queue.lose(config, f"its worker or node is gone ({type(error).__name__})", stopping)
        return queue.last()

    def submit(
        self,
        config: RunConfig,
        out: Path,
        control: Control,
        data_dir: Path | None,
        checkpoint_seconds: float | None,
        again: bool,
        log: Logging | None,
    ) -> ObjectRef[Any]:
        """Give a run to the cluster."""
        source, needed = TASKS[config.task].data, demand(config)
        if source not in self.loaded:
            self.loaded[source] = ray.put(loading.load(source, data_dir))
        task = train_on_node.options(
            num_cpus=needed["CPU"], num_gpus=needed["GPU"], max_retries=0, scheduling_strategy="SPREAD", name=config.name
        )
        patience, version, threads = LOCK_SECONDS if again else 0.0, arturo.__version__, math.ceil(needed["CPU"])
        ref: ObjectRef[Any] = task.remote(
            config, self.loaded[source], out, control, checkpoint_seconds, threads, patience, version, log
        )
        return ref


class Progress:
    """How far the running runs are, from their folders."""

    def __init__(self, out: Path, queue: RunQueue) -> None:
        self.out = out
        self.queue = queue
        self.sizes: dict[RunConfig, tuple[int, ...]] = {}  # of what a run writes, when it was looked at last

    def size(self, config: RunConfig) -> tuple[int, ...]:
        folder = self.out / config.folder
        files = (folder / name for name in ("steps.jsonl", "metrics.jsonl"))
        return tuple(path.stat().st_size if path.exists() else 0 for path in files)

    def begin(self, config: RunConfig) -> None:
        self.sizes[config] = self.size(config)

    def look(self, configs: Iterable[RunConfig]) -> None:
        """Update the status of those that have written something."""
        for config in configs:
            if (now := self.size(config)) != self.sizes[config]:
                self.sizes[config] = now
                status = status_of(config, self.out)
                if status.state == "waiting":  # what is over reports itself
                    self.queue.update(replace(status, state="training"))


# --- on a node


@ray.remote
def train_on_node(
    config: RunConfig,
    data: Examples,
    out: Path,
    control: Control,
    checkpoint_seconds: float | None,
    threads: int,
    patience: float,
    version: str,
    log: Logging | None,
) -> RunStatus:
    """One run in its folder, as soon as nobody else is in it; ``patience`` seconds are waited for that. Its last status."""
    host = socket.gethostname()
    try:
        if version != arturo.__version__:
            raise RunError(f"{host}: has arturo {arturo.__version__}, the command came from {version}; install the same there")
        if not control.folder.exists():
            raise RunError(f"{host}: does not see {out}; --out must be on storage that all nodes share")
        control.begin(config.name)
        if control.stopped():
            return status_of(config, out)
        torch.set_num_threads(threads)
        until = time.monotonic() + patience
        while True:
            try:
                return train_one(
                    config, data, out, checkpoint_seconds, lambda status: None, control.stopped_now_and_then(), log
                )
            except RunError as error:
                if not isinstance(error.__cause__, Locked) or time.monotonic() > until:
                    raise
            time.sleep(0.5)
    except Exception as error:
        return failed(config, error)
