"""Ctrl-C without a torn step: the first one asks, the second one insists."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the second is how batch systems announce the end of the time


@dataclass
class Interrupt:
    """Whether somebody asked to stop. Call it to know."""

    signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """As a shell counts: 130 after Ctrl-C."""
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Inside the block a first Ctrl-C only sets the flag; a second one raises KeyboardInterrupt wherever we are.

    Signals reach the main thread alone; in another one the flag stays as it is.
    """
    asked = Interrupt()

    def note(number: int, frame: FrameType | None) -> None:
        if asked():
            raise KeyboardInterrupt
        asked.signal = number
        os.write(2, b"\narturo: stopping after this step; once more to stop at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
