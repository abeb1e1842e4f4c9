"""Many trainings at once, each in a separate process; :mod:`arturo_lab.pool.cluster` has the same on a Ray cluster.

A worker gets configs through a pipe and answers with their status (:mod:`arturo_lab.pool.status`). The pipe is also how it is
stopped: it becomes readable when the parent writes to it, and when the parent is gone. Either way the worker saves a
checkpoint and ends. Signals of the terminal are handled by the parent alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from arturo_lab.data import loading
from arturo_lab.data.examples import Examples
from arturo_lab.pool.status import RunQueue, RunStatus, failed, status_of
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.run import open_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.epoch import EpochMetrics, StepMetrics
from arturo_lab.training.interrupt import SIGNALS
from arturo_lab.training.loggers import Logging
from arturo_lab.training.train import train

CHECKPOINT_SECONDS = 300.0  # a killed worker loses at most so much
STATUS_SECONDS = 0.3  # between two statuses within an epoch
ATTEMPTS = 2  # a run whose worker died is tried once more


def train_all(
    configs: Sequence[RunConfig],
    out: Path,
    jobs: int = 1,
    *,
    data_dir: Path | None = None,
    checkpoint_seconds: float | None = CHECKPOINT_SECONDS,
    on_status: Callable[[RunStatus], None] = lambda status: None,
    stop: Callable[[], bool] = lambda: False,
    log: Logging | None = None,
) -> list[RunStatus]:
    """Train what is not over yet, ``jobs`` at a time; return the last status of each config, in their order.

    Runs are the folders of :func:`arturo_lab.runs.run.open_run` under ``out``: one that is over is left alone, one that was
    interrupted is resumed. A worker that dies is replaced, and its run resumed from its checkpoint, once.

    Args:
        configs: what to train. How many run at once has no part in their numbers.
        out: where the run folders are.
        jobs: processes. They share the threads that torch would take, unless a config says how many it wants.
        data_dir: see :func:`arturo_lab.data.loading.load`.
        checkpoint_seconds: also save so often, not only after epochs.
        on_status: called with every change.
        stop: asked several times a second; True lets every worker save a checkpoint and end.
        log: other places that the runs log to.
    """
    queue = RunQueue(configs, out, ATTEMPTS, on_status)
    waiting = queue.waiting
    jobs = min(jobs, len(waiting))
    threads = threads_of_each(jobs)
    workers: list[Worker] = []
    stopping = False
    try:
        while True:
            if stop() and not stopping:
                stopping = True
                for worker in workers:
                    worker.send(None)
            if stopping:
                waiting.clear()
            while waiting and len(workers) < jobs:
                workers.append(Worker.start(out, data_dir, threads, checkpoint_seconds, log))
            for worker in workers:
                if worker.config is None and waiting:
                    worker.config = queue.take()
                    worker.send(worker.config)
            if not any(worker.config for worker in workers):
                break
            for ready in wait([worker.connection for worker in workers], timeout=0.1):
                worker = next(worker for worker in workers if worker.connection is ready)
                try:
                    status = worker.connection.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    if worker.config is not None:
                        queue.lose(worker.config, ending(worker.end()), stopping)
                    continue
                queue.update(status)  # an error of who listens, such as a full disk, is not the worker's
                if status.state != "training":
                    worker.config = None
    finally:
        for worker in workers:
            worker.end()
    return queue.last()


def threads_of_each(jobs: int) -> int | None:
    """CPU threads of one of so many processes that share this machine; None: torch's choice."""
    return max(torch.get_num_threads() // jobs, 1) if jobs > 1 else None


def ending(code: int | None) -> str:
    """How a process ended, from its exit code."""
    return "its process " + (
        "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    )


@dataclass
class Worker:
    """A process that trains, seen from its parent."""

    process: BaseProcess
    connection: Connection
    config: RunConfig | None = None  # what it trains

    @classmethod
    def start(cls, *arguments: object) -> Worker:
        context = start_context()
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        with signals_held_back():
            process.start()
        theirs.close()  # so that the pipe ends when the process does
        return cls(process, ours)

    def send(self, message: RunConfig | None) -> None:
        with suppress(OSError):  # it died: reading from it will tell
            self.connection.send(message)

    def end(self) -> int | None:
        """At once, unless it has ended or is about to. Its exit code."""
        self.connection.close()
        self.process.join(0.5)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        return self.process.exitcode


def start_context() -> Any:
    """How processes start: not as a fork of ours, which may hang on the threads it lost.

    A server process that has computed nothing yet, and so has no threads to lose, forks them with the slow imports done.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["arturo_lab.pool.workers", "torch._dynamo", "sklearn.datasets"])
    return context


@contextmanager
def signals_held_back() -> Iterator[None]:
    """A process started inside never gets the signals of the terminal, not even while it imports; ours come afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the worker's process

load = lru_cache(maxsize=1)(loading.load)  # tasks come one after the other


def work(
    connection: Connection,
    out: Path,
    data_dir: Path | None,
    threads: int | None,
    checkpoint_seconds: float | None,
    log: Logging | None,
) -> None:
    """Train one config after the other, until the parent says None or is gone."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    silence_advice()
    if threads is not None:
        torch.set_num_threads(threads)

    def tell(status: RunStatus) -> None:
        with suppress(OSError):  # the parent is gone, which `stop` notices
            connection.send(status)

    with suppress(EOFError, OSError):
        while (config := connection.recv()) is not None:
            try:
                loaded = load(TASKS[config.task].data, data_dir)
                tell(train_one(config, loaded, out, checkpoint_seconds, tell, connection.poll, log))
            except Exception as error:
                tell(failed(config, error))


def silence_advice() -> None:
    """AdaArturo's word on a large lr is for one's own script: a search tries such rates on purpose, and each of its
    trainings would say it again. From now on in this process.
    """
    warnings.filterwarnings("ignore", message="lr=.* for the length of AdaArturo's steps")


def train_one(
    config: RunConfig,
    loaded: Examples,
    out: Path,
    checkpoint_seconds: float | None,
    tell: Callable[[RunStatus], object],
    stop: Callable[[], bool],
    log: Logging | None = None,
) -> RunStatus:
    """Train or resume one run; its last status."""
    with ExitStack() as stack:
        folder = stack.enter_context(open_run(out, config, checkpoint_seconds))
        last = status_of(config, out)
        if last.reused:  # another process was faster
            return last
        loggers = [] if log is None else stack.enter_context(log.of(folder))
        reported = 0.0

        def on_step(metrics: StepMetrics) -> None:
            nonlocal reported
            for logger in loggers:
                logger.on_step(metrics)
            if (now := time.monotonic()) - reported >= STATUS_SECONDS:
                reported = now
                tell(RunStatus(config, "training", metrics.step / config.steps_per_epoch, last.value, last.seconds))

        def on_epoch(metrics: EpochMetrics) -> None:
            nonlocal last
            taken = metrics.seconds + metrics.seconds_test
            last = RunStatus(config, "training", float(metrics.epoch), metrics.value(TASKS[config.task].metric.name), taken)
            for logger in loggers:
                logger.on_epoch(metrics)
            tell(last)

        try:
            train(config, loaded, on_epoch, on_step, run=folder, stop=stop)
        except KeyboardInterrupt:
            return RunStatus(config, "stopped", last.epochs, last.value, last.seconds)
        assert folder.result is not None
        return RunStatus(config, folder.result["status"], last.epochs, last.value, last.seconds)
