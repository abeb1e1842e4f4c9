"""Files that exist completely or not at all, even after a crash while they were written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write to the stream; at the end of the block it takes the place of ``path`` in one go, and is on the disk.

    A reader sees the old file or the new one, never half of it. If the block raises, the old one stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name is in the folder, which is a separate file
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write(path: Path, content: bytes) -> None:
    with replacing(path) as stream:
        stream.write(content)


def write_json(path: Path, value: Any) -> None:
    """Indented JSON. It has no NaN or infinity: :func:`arturo_lab.training.epoch.as_row` replaces them first."""
    write(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
