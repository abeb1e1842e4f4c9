"""Files from the network: resumed where they broke off, accepted only if their checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from arturo_lab.errors import ConfigError, DownloadError
from arturo_lab.runs.lock import Locked, locked

ATTEMPTS = 4  # in a row without a byte of progress; every byte starts the count again
PAUSE = 2.0  # seconds before trying again
TIMEOUT = 30.0  # seconds without an answer
CHUNK = 1 << 18

Progress = Callable[[int], None]  # bytes there so far


@dataclass(frozen=True)
class RemoteFile:
    """A published file that never changes."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


class _Passing(Exception):
    """A failure that may be gone at the next attempt."""


def download(file: RemoteFile, folder: Path, mirror: str | None = None, on_progress: Progress | None = None) -> Path:
    """Put ``file`` into ``folder`` and return its path. A complete file that is already there is only checked.

    What arrives goes to ``NAME.part`` first, and a later call resumes from there. The file gets its name once its checksum
    is right, so a file of that name is always whole.

    Args:
        file: what to get.
        folder: where to; made if need be.
        mirror: a URL under which a file of the same name lies; the official place otherwise.
        on_progress: called with the number of bytes there so far.

    Raises:
        DownloadError: no connection, an answer that is not the file, a wrong checksum, a folder that cannot be written.
    """
    url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise ConfigError(f"mirror: {mirror!r} is not a URL ({error})") from error
    if scheme not in ("http", "https", "file"):
        raise ConfigError(f"mirror: must start with http://, https:// or file://, got {mirror!r}")
    target, part = folder / file.name, folder / f"{file.name}.part"
    report = on_progress or (lambda done: None)
    try:
        if not target.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / ".download.lock"):
                if not target.is_file():
                    _complete(part, url, file, report)
                    os.replace(part, target)
        elif sha256(target) != file.sha256:
            raise DownloadError(f"{url}: {target} exists but has the wrong checksum; remove it to download it again")
    except Locked as error:
        raise DownloadError(f"{url}: {error} is downloading to {folder}") from error
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(f"{url}: cannot write to {folder} ({error.strerror})") from error
    report(file.size)
    return target


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _complete(part: Path, url: str, file: RemoteFile, report: Progress) -> None:
    """Fill ``part`` until size and checksum are right."""
    if _size(part) > 0:
        if _fill(part, url, file, report):
            return
        part.unlink()  # what an earlier call had left was not the beginning of this file
    if not _fill(part, url, file, report):
        digest = sha256(part)
        part.unlink()
        raise DownloadError(f"{url}: wrong checksum: sha256 is {digest}, expected {file.sha256}; the download was discarded")


def _fill(part: Path, url: str, file: RemoteFile, report: Progress) -> bool:
    """Append to ``part`` until it has its size; whether it then has its checksum."""
    failures = 0
    while _size(part) < file.size:
        before = _size(part)
        try:
            _append(part, url, file, report)
        except _Passing as error:
            failures = 0 if _size(part) > before else failures + 1
            if failures == ATTEMPTS:
                done = f"{_size(part):,} of {file.size:,} bytes have arrived"
                hint = (
                    "run the same command again to resume"
                    if _size(part)
                    else "use --mirror URL to download it from another place"
                )
                raise DownloadError(f"{url}: {error}; {done}, {hint}") from error
            time.sleep(PAUSE)
    return _size(part) == file.size and sha256(part) == file.sha256


def _append(part: Path, url: str, file: RemoteFile, report: Progress) -> None:
    """One request for the bytes that are missing."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing there beyond what we have: then what we have is not this file
            part.unlink()
            return
        if error.code >= 500 or error.code in (408, 429):
            raise _Passing(f"the server says {error.code} {error.reason}") from error
        raise DownloadError(f"{url}: the server says {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())  # in one line
        raise _Passing(f"no answer ({reason})") from error

    with response:
        if have and response.headers.get("Content-Range", "").partition("-")[0] != f"bytes {have}":
            have = 0  # a server without ranges, which starts again
        length = response.headers.get("Content-Length", "")
        if length.isascii() and length.isdigit() and have + int(length) != file.size:
            raise DownloadError(f"{url}: wrong size: {have + int(length):,} bytes instead of {file.size:,}")
        with part.open("r+b" if part.exists() else "w+b") as stream:
            stream.truncate(have)
            stream.seek(have)
            while have < file.size:
                try:
                    chunk = response.read1(min(CHUNK, file.size - have)) if hasattr(response, "read1") else response.read(CHUNK)
                except (http.client.HTTPException, OSError) as error:
                    raise _Passing(f"the connection broke ({error})") from error
                if not chunk:
                    raise _Passing("the connection broke")
                stream.write(chunk)
                have += len(chunk)
                report(have)
