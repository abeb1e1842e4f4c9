"""One process at a time. The kernel holds the lock and drops it when the process ends, however it ends: none goes stale."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Locked(Exception):
    """Another process holds it. The message names that process, if known."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` inside the block, or raise :class:`Locked` at once.

    The file stays behind: removing it would let a third process lock a new file of that name while a second still waits
    for the old one.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _lock(handle)
        except OSError as error:
            holder = os.read(handle, 200).decode(errors="replace").strip()
            raise Locked(holder or "another process") from error
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)  # and with it the lock


try:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

except ImportError:  # Windows
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 20, os.SEEK_SET)  # a byte nobody reads, so that the holder's name can be read
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        os.lseek(handle, 0, os.SEEK_SET)
