"""Many trainings on a Ray cluster: the runs, status and numbers of :func:`arturo_lab.pool.workers.train_all`.

A run is a Ray task. On a node that sees our run folders (this machine, or a file system that the nodes share) it trains in the
run's own folder. On one that does not it trains in a folder there, which begins as a copy of ours, and sends its files back
with every checkpoint. Either way a run whose worker or node dies goes on from its last checkpoint on another one.

Nodes need arturo and Ray in the same versions as here. Data comes from here.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arturo_lab.data import loading
from arturo_lab.errors import ConfigError, RunError
from arturo_lab.pool.node import FILES, Files, Order, read_files, train_there
from arturo_lab.pool.status import RunQueue, RunStatus, failed
from arturo_lab.pool.workers import CHECKPOINT_SECONDS
from arturo_lab.runs import atomic
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.lock import Locked, locked
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.interrupt import SIGNALS

ATTEMPTS = 5  # for each run; nodes come and go
LOOK_EVERY = 0.2  # seconds between two looks at what the nodes say
LOCK_SECONDS = 60.0  # a process of a node that is given up may hold its run's folder so long

NO_CLUSTER = (
    "ray: no cluster at {} ({}); `ray start --head` makes this machine one, and its output has the command for further nodes"
)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The Ray cluster at ``address``, or with ``"auto"`` the one that this machine is a node of."""
    check_address(address)
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # Ray puts a function of its own in the place of print() otherwise
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
class Attempt:
    """A run that is on its way."""

    config: RunConfig
    number: int  # which one it is of all; what an earlier one still says is not heard


@dataclass
class Cluster:
    """A Ray cluster that this process is connected to. Made by :func:`connected`."""

    loaded: dict[loading.Source, ObjectRef[Any]] = field(default_factory=dict)  # data sets by name, in Ray's memory

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
        shared: bool | None = None,
    ) -> list[RunStatus]:
        """Like :func:`arturo_lab.pool.workers.train_all`, with the nodes' processes instead of ours.

        Args:
            jobs: at most so many at once; None leaves that to Ray.
            shared: whether nodes see our folders; None: each node looks.
        """
        queue = RunQueue(configs, out, ATTEMPTS, on_status)
        waiting = queue.waiting
        if not waiting:
            return queue.last()
        self.capacity(list(waiting))
        running: dict[ObjectRef[Any], Attempt] = {}
        stopping, submitted = False, 0
        mailbox = start_mailbox()
        with visible_token(out, shared) as token:
            while waiting or running:
                if stop() and not stopping:
                    stopping = True
                    waiting.clear()
                    ray.get(mailbox.stop.remote())
                    for ref, attempt in running.items():
                        if queue.latest[attempt.config].state == "waiting":
                            ray.cancel(ref)
                while waiting and len(running) < (jobs or len(configs)):
                    config = queue.take()
                    submitted += 1
                    again = queue.attempts[config] > 1
                    ref = self.submit(config, out, token, data_dir, checkpoint_seconds, submitted, again, mailbox)
                    running[ref] = Attempt(config, submitted)

                for number, letter in ray.get(mailbox.collect.remote()):
                    for ref in [ref for ref, attempt in running.items() if attempt.number == number]:
                        try:
                            receive(letter, running[ref].config, out, queue.update)
                        except RunError as error:  # its files cannot be written
                            queue.update(failed(running.pop(ref).config, error))
                            ray.cancel(ref, force=True)
                for ref in ray.wait(list(running), timeout=LOOK_EVERY)[0] if running else []:
                    config = running.pop(ref).config
                    try:
                        status, files = ray.get(ref)
                        receive(files, config, out, queue.update)
                        queue.update(status)
                    except TaskCancelledError:
                        pass  # it had not begun
                    except (RunError, RayTaskError) as error:
                        queue.update(failed(config, error))
                    except RayError as error:  # no word of the run: its process or its node is gone
                        queue.lose(config, f"its worker or node is gone ({type(error).__name__})", stopping)
        ray.kill(mailbox)
        return queue.last()

    def submit(
        self,
        config: RunConfig,
        out: Path,
        token: Path | None,
        data_dir: Path | None,
        checkpoint_seconds: float | None,
        number: int,
        again: bool,
        mailbox: Any,
    ) -> ObjectRef[Any]:
        """Give a run to the cluster."""
        name, wanted = TASKS[config.task].data, demand(config)
        if name not in self.loaded:
            self.loaded[name] = ray.put(loading.load(name, data_dir))
        files = read_files(out / config.folder)
        order = Order(
            config,
            self.loaded[name],
            ray.put(files) if files else None,
            out.resolve(),
            token,
            checkpoint_seconds,
            number,
            math.ceil(wanted["CPU"]),
            LOCK_SECONDS if again else 0.0,
        )
        task = train_there.options(
            num_cpus=wanted["CPU"], num_gpus=wanted["GPU"], max_retries=0, scheduling_strategy="SPREAD", name=config.name
        )
        ref: ObjectRef[Any] = task.remote(order, mailbox)
        return ref


def start_mailbox() -> Any:
    """A mailbox, in a process on this machine if it is a node."""
    options: dict[str, Any] = {"num_cpus": 0}
    if not ray.util.client.ray.is_connected():  # else we are outside of the cluster
        here = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    return ray.remote(Mailbox).options(**options).remote()


@contextmanager
def visible_token(out: Path, shared: bool | None) -> Iterator[Path | None]:
    """A file under ``out`` by which a node tells that it sees the same folders. None: it is not asked to look."""
    if shared is False:
        yield None
        return
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            token = Path(stack.enter_context(tempfile.NamedTemporaryFile(prefix=".ray-", dir=out.resolve())).name)
        except OSError as error:
            raise RunError(f"{out}: cannot write there ({error.strerror or error}); choose another --out") from error
        yield token


def receive(letter: RunStatus | Files | None, config: RunConfig, out: Path, tell: Callable[[RunStatus], None]) -> None:
    """RunStatus are passed on, files are written to the run's folder."""
    if isinstance(letter, RunStatus):
        tell(letter)
    elif letter:
        folder = out / config.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / ".lock"):
                for name in FILES:
                    if name in letter:
                        atomic.write(folder / name, letter[name])
        except Locked as error:
            raise RunError(f"{folder}: {error} is training here; wait for it, or use another --out") from error
        except OSError as error:
            raise RunError(f"{folder}: cannot write there ({error.strerror or error}); choose another --out") from error


class Mailbox:
    """What the nodes say, until we collect it; and what they hear: whether to stop. An actor."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, RunStatus | Files]] = []
        self.stopping = False

    def post(self, number: int, letter: RunStatus | Files) -> bool:
        self.letters.append((number, letter))
        return self.stopping

    def collect(self) -> list[tuple[int, RunStatus | Files]]:
        letters, self.letters = self.letters, []
        return letters

    def stop(self) -> None:
        self.stopping = True
