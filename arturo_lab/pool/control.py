"""How a command and its runs on other machines communicate: through a folder that all of them see."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from arturo_lab.errors import RunError

STOP_SECONDS = 0.5  # between two looks at whether to stop


@dataclass(frozen=True)
class Control:
    """A folder beside the run folders. A machine that does not see it does not share our storage.

    ``stop`` in it asks all runs to stop, and so does its absence: the command has ended. Every run that begins leaves a
    file there.
    """

    folder: Path

    def begin(self, run: str) -> None:
        (self.folder / run).touch()

    def has_begun(self, run: str) -> bool:
        return (self.folder / run).exists()

    def stop(self) -> None:
        (self.folder / "stop").touch()

    def stopped(self) -> bool:
        return (self.folder / "stop").exists() or not self.folder.exists()

    def stopped_now_and_then(self) -> Callable[[], bool]:
        """The same to be asked after every step, without a look at the disk each time."""
        looked, gone = -math.inf, False

        def stopped() -> bool:
            nonlocal looked, gone
            if not gone and (now := time.monotonic()) - looked >= STOP_SECONDS:
                looked, gone = now, self.stopped()
            return gone

        return stopped


@contextmanager
def control_folder(out: Path) -> Iterator[Control]:
    """A new one under ``out``, gone after the block."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".ray-", dir=out.resolve()))
    except OSError as error:
        raise RunError(f"{out}: cannot write there ({error.strerror or error}); choose another --out") from error
    try:
        yield Control(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
