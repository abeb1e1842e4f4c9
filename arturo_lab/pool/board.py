"""What is known of many runs: the news of each, who waits, who is tried again. Whoever trains them, a process or a cluster."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arturo_lab.errors import LabError
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import RecordError, read_run

OVER = ("finished", "diverged")


@dataclass(frozen=True)
class News:
    """What is known of a run now."""

    config: RunConfig
    state: str  # waiting, training, finished, diverged, stopped (can go on), failed
    epochs: float = 0.0  # done, with the part of the one under way
    accuracy: float | None = None  # test accuracy after the last whole one
    seconds: float | None = None  # that an epoch takes, its test included
    reused: bool = False  # it was over before
    message: str = ""  # why it failed, or starts again
    details: str = ""  # the traceback of an error that is ours


class Board:
    """What is known of every run, and which of them wait.

    Args:
        configs: the runs.
        out: where their folders are.
        most: attempts at a run whose worker dies.
        on_news: told of everything.
    """

    def __init__(self, configs: Sequence[RunConfig], out: Path, most: int, on_news: Callable[[News], None]) -> None:
        self.latest: dict[RunConfig, News] = {}
        self.most = most
        self.on_news = on_news
        for config in configs:
            self.tell(found(config, out))
        self.waiting = deque(config for config in configs if self.latest[config].state == "waiting")
        self.attempts = dict.fromkeys(configs, 0)

    def tell(self, news: News) -> None:
        self.latest[news.config] = news
        self.on_news(news)

    def take(self) -> RunConfig:
        """The next one, for one more attempt."""
        config = self.waiting.popleft()
        self.attempts[config] += 1
        return config

    def lose(self, config: RunConfig, how: str, stopping: bool) -> None:
        """Whoever trained it is gone: it waits again, unless we are stopping or it has had its attempts."""
        before, attempts = self.latest[config], self.attempts[config]
        if stopping:
            state, what = "stopped", "the same command goes on from its last checkpoint"
        elif attempts < self.most:
            state, what = "waiting", "going on from its last checkpoint in another one"
            self.waiting.appendleft(config)
        else:
            state, what = "failed", f"{attempts} times; the same command goes on from its last checkpoint"
        self.tell(News(config, state, math.floor(before.epochs), before.accuracy, message=f"{how}; {what}"))

    def last(self) -> list[News]:
        return list(self.latest.values())


def found(config: RunConfig, out: Path) -> News:
    """What the folder of a run says before anything is done."""
    folder = out / config.task / config.name
    if not (folder / "config.json").exists():
        return News(config, "waiting")
    try:
        record = read_run(folder)
    except RecordError as error:
        return News(config, "failed", message=f"{folder}/{error}")
    taken = [(row.get("seconds") or 0.0) + (row.get("seconds_test") or 0.0) for row in record.rows]
    state = record.status if record.status in OVER else "waiting"
    return News(
        config,
        state,
        float(len(record.rows)),
        record.rows[-1].get("test_accuracy") if record.rows else None,
        sum(taken) / len(taken) if taken else None,
        reused=state in OVER,
    )


def failed(config: RunConfig, error: Exception) -> News:
    """An error as news: ours in a line, any other with its traceback."""
    if isinstance(error, LabError):
        return News(config, "failed", message=str(error))
    details = "".join(traceback.format_exception(error))
    return News(config, "failed", message=f"{type(error).__name__}: {error}", details=details)
