"""A run on a node of a Ray cluster: what :mod:`arturo_lab.pool.cluster` lets happen there."""

from __future__ import annotations

import socket
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayError

import arturo
from arturo_lab.data.examples import Examples
from arturo_lab.errors import RunError
from arturo_lab.pool.status import RunStatus, failed
from arturo_lab.pool.workers import train_one
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.lock import Locked

FILES = ("config.json", "environment.json", "metrics.jsonl", "steps.jsonl", "checkpoint.pt", "result.json")  # order of writing
Files = dict[str, bytes]  # of a run folder, by name


@dataclass(frozen=True)
class Order:
    """All that a node needs to know of a run."""

    config: RunConfig
    images: ObjectRef[Any]  # the data set
    files: ObjectRef[Any] | None  # of the run so far
    out: Path
    token: Path | None  # see visible_token
    checkpoint_seconds: float | None
    number: int  # of the attempt
    threads: int
    lock_seconds: float  # how long to wait for somebody else to leave the folder
    version: str = arturo.__version__


def read_files(folder: Path) -> Files:
    """What there is of a run. The checkpoint comes first: rows beyond it do no harm, missing ones would."""
    return {name: (folder / name).read_bytes() for name in reversed(FILES) if (folder / name).exists()}


class Line:
    """A node's end of the mailbox. A thread does the talking: a task that waits for Ray in its main thread gives its CPU
    to another one meanwhile, and the node has one more than it should.

    Args:
        mailbox: the actor.
        number: of the attempt.
    """

    def __init__(self, mailbox: Any, number: int) -> None:
        self.mailbox = mailbox
        self.number = number
        self.stopping = False
        self.thread = ThreadPoolExecutor(1)

    def tell(self, letter: RunStatus | Files) -> Future[None]:
        """Returns at once; the letter has arrived when the result is there."""
        return self.thread.submit(self.post, letter)

    def post(self, letter: RunStatus | Files) -> None:
        try:
            if ray.get(self.mailbox.post.remote(self.number, letter)):
                self.stopping = True
        except RayError:  # nobody is there to train for
            self.stopping = True

    def fetch(self, ref: ObjectRef[Any]) -> Any:
        return self.thread.submit(ray.get, ref).result()

    def stop(self) -> bool:
        return self.stopping


kept: dict[ObjectRef[Any], Examples] = {}  # one data set: tasks of a process come one after the other


def images_of(ref: ObjectRef[Any], line: Line) -> Examples:
    if ref not in kept:
        kept.clear()
        kept[ref] = line.fetch(ref)
    return kept[ref]


@ray.remote
def train_there(order: Order, mailbox: Any) -> tuple[RunStatus, Files | None]:
    """One run on this node: its last status, and its files if they have to be sent."""
    line = Line(mailbox, order.number)
    try:
        if order.version != arturo.__version__:
            raise RunError(
                f"{socket.gethostname()}: has arturo {arturo.__version__}, the command came from {order.version}; "
                "install the same there"
            )
        torch.set_num_threads(order.threads)
        images = images_of(order.images, line)
        if order.token is not None and order.token.exists():
            return train_patiently(order, images, line), None
        with tempfile.TemporaryDirectory(prefix="arturo-") as scratch:
            return train_and_send(order, images, Path(scratch), line)
    except Exception as error:
        return failed(order.config, error), None
    finally:
        line.thread.shutdown()


def train_patiently(order: Order, images: Examples, line: Line) -> RunStatus:
    """In the folder itself, as soon as nobody else is in it."""
    until = time.monotonic() + order.lock_seconds
    while True:
        try:
            return train_one(order.config, images, order.out, order.checkpoint_seconds, line.tell, line.stop)
        except RunError as error:
            if not isinstance(error.__cause__, Locked) or time.monotonic() > until:
                raise
        time.sleep(0.5)


def train_and_send(order: Order, images: Examples, scratch: Path, line: Line) -> tuple[RunStatus, Files]:
    """In a folder of this node, whose files go back with every checkpoint."""
    folder = scratch / order.config.task / order.config.name
    folder.mkdir(parents=True)
    for name, content in ({} if order.files is None else line.fetch(order.files)).items():
        (folder / name).write_bytes(content)
    checkpoint = folder / "checkpoint.pt"

    def saved() -> int | None:
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else None

    sent = saved()

    def tell(status: RunStatus) -> None:
        nonlocal sent
        line.tell(status)
        if (now := saved()) != sent:
            line.tell(read_files(folder)).result()  # one set of files on the way at a time
            sent = now

    status = train_one(order.config, images, scratch, order.checkpoint_seconds, tell, line.stop)
    return status, read_files(folder)
