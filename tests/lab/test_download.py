"""Downloads, against a server on loopback that breaks off, forgets ranges and sends the wrong thing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from arturo_lab.data import download, loading
from arturo_lab.data.download import RemoteFile
from arturo_lab.data.sources import DATA
from arturo_lab.errors import ConfigError, DownloadError
from arturo_lab.runs.lock import locked

CONTENT = np.random.default_rng(0).bytes(1_000_000)


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``drops`` says after how many bytes each of the next answers breaks off."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/some/mirror"
        self.files = {"file.bin": CONTENT}
        self.ranges = True
        self.drops: list[int] = []
        self.statuses: list[int] = []
        self.length: str | None = None  # said instead of the right one
        self.asked: list[str] = []  # the Range header of each request

    def file(self, name: str = "file.bin") -> RemoteFile:
        content = self.files[name]
        return RemoteFile(f"http://official.invalid/{name}", len(content), hashlib.sha256(content).hexdigest())


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.headers.get("Range", ""))
        content = server.files.get(self.path.removeprefix("/some/mirror/"))
        status = server.statuses.pop(0) if server.statuses else 200 if content is not None else 404
        if status != 200 or content is None:
            self.send_error(status)
            return
        start = int(server.asked[-1].removeprefix("bytes=").rstrip("-") or 0) if server.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start) if server.length is None else server.length)
        self.end_headers()
        end = start + server.drops.pop(0) if server.drops else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetched(server: Server, folder: Path) -> Path:
    path = download.download(server.file(), folder, server.url)
    assert path.read_bytes() == CONTENT
    assert not list(folder.glob("*.part"))
    return path


def test_download_reports_progress(server: Server, tmp_path: Path) -> None:
    seen: list[int] = []
    path = download.download(server.file(), tmp_path / "a" / "b", server.url, seen.append)
    assert path == tmp_path / "a" / "b" / "file.bin" and path.read_bytes() == CONTENT
    assert seen == sorted(seen) and seen[-1] == len(CONTENT) and len(seen) > 2


def test_what_is_there_is_only_checked(server: Server, tmp_path: Path) -> None:
    fetched(server, tmp_path)
    fetched(server, tmp_path)
    assert server.asked == [""]
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(DownloadError, match=r"file\.bin exists but has the wrong checksum; remove it"):
        download.download(server.file(), tmp_path, server.url)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def test_goes_on_where_the_connection_broke(server: Server, tmp_path: Path) -> None:
    server.drops = [300_000, 200_000]
    fetched(server, tmp_path)
    assert server.asked == ["", "bytes=300000-", "bytes=500000-"]


def test_goes_on_where_an_earlier_process_was_killed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    fetched(server, tmp_path)
    assert server.asked == ["bytes=123456-"]


def test_complete_part_needs_no_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    fetched(server, tmp_path)
    assert server.asked == []


def test_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.drops = [300_000]
    fetched(server, tmp_path)
    assert server.asked == ["", "bytes=300000-"]


@pytest.mark.parametrize("left", [b"\0" * 1000, b"\0" * len(CONTENT), b"\0" * (len(CONTENT) + 7)])
def test_part_that_is_not_the_beginning_is_thrown_away(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "file.bin.part").write_bytes(left)
    fetched(server, tmp_path)
    assert server.asked[-1] == ""


def test_wrong_checksum_is_refused(server: Server, tmp_path: Path) -> None:
    file = server.file()
    server.files["file.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(DownloadError, match=rf"some/mirror/file\.bin: wrong checksum: sha256 is .*, expected {file.sha256}"):
        download.download(file, tmp_path, server.url)
    assert [path.name for path in tmp_path.iterdir()] == [".download.lock"]


def test_another_size_is_refused_before_it_is_downloaded(server: Server, tmp_path: Path) -> None:
    file = server.file()
    server.files["file.bin"] = b"<html>please log in</html>"
    with pytest.raises(DownloadError, match="wrong size: 26 bytes instead of 1,000,000"):
        download.download(file, tmp_path, server.url)
    assert not (tmp_path / "file.bin").exists()


def test_gives_up_after_attempts_without_progress_and_keeps_the_part(server: Server, tmp_path: Path) -> None:
    server.drops = [5_000] + [0] * download.ATTEMPTS
    with pytest.raises(
        DownloadError, match="connection broke; 5,000 of 1,000,000 bytes have arrived, run the same command again to resume"
    ):
        download.download(server.file(), tmp_path, server.url)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:5_000]
    fetched(server, tmp_path)
    assert server.asked[-1] == "bytes=5000-"


def test_busy_server_is_asked_again_and_missing_file_is_not(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429, 200]
    fetched(server, tmp_path)
    assert len(server.asked) == 3
    with pytest.raises(DownloadError, match=r"nothing\.bin: the server says 404"):
        download.download(replace(server.file(), url="http://official.invalid/nothing.bin"), tmp_path, server.url)
    assert len(server.asked) == 4


def test_a_length_that_is_no_number_is_no_reason_to_give_up(server: Server, tmp_path: Path) -> None:
    server.length = "abc"
    fetched(server, tmp_path)


def test_no_server(server: Server, tmp_path: Path) -> None:
    with Server() as gone:
        url = gone.url
    with pytest.raises(
        DownloadError,
        match=r"no answer .*; 0 of 1,000,000 bytes have arrived, use --mirror URL to download it from another place",
    ):
        download.download(server.file(), tmp_path, url)


def test_file_mirror(server: Server, tmp_path: Path) -> None:
    mirror = tmp_path / "disk"
    mirror.mkdir()
    (mirror / "file.bin").write_bytes(CONTENT)
    path = download.download(server.file(), tmp_path, mirror.as_uri())
    assert path.read_bytes() == CONTENT and server.asked == []


def test_bad_mirror(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^mirror: must start with http://, https:// or file://, got 'example.org'"):
        download.download(server.file(), tmp_path, "example.org")
    with pytest.raises(ConfigError, match=r"^mirror: 'http://\[bad' is not a URL"):
        download.download(server.file(), tmp_path, "http://[bad")


def test_second_process_is_told(server: Server, tmp_path: Path) -> None:
    with locked(tmp_path / ".download.lock"), pytest.raises(DownloadError, match=r"process \d+ on .* is downloading to"):
        download.download(server.file(), tmp_path, server.url)


def test_unwritable_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"cannot write to .*/file/folder \(Not a directory\)"):
        download.download(server.file(), tmp_path / "file" / "folder", server.url)


def publish(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> None:
    server.files |= files
    monkeypatch.setitem(DATA, name, replace(DATA[name], files=tuple(server.file(file) for file in files)))


def test_fetch_cifar_to_the_cache(server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch, cifar10) -> None:
    publish(server, monkeypatch, "cifar10", {cifar10.archive: cifar10.write_archive(nowhere / "origin").read_bytes()})
    place = loading.fetch("cifar10", mirror=server.url)
    assert place == nowhere / "cache" / "arturo" / "cifar-10-python.tar.gz"
    assert len(loading.load("cifar10").train_targets) == 20
    assert loading.fetch("cifar10", mirror=server.url) == place and len(server.asked) == 1


def test_fetch_fashion_mnist_to_a_folder(server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch, fashion_mnist) -> None:
    fashion_mnist.write(nowhere / "origin", gz=True)
    publish(server, monkeypatch, "fashion-mnist", {path.name: path.read_bytes() for path in (nowhere / "origin").iterdir()})
    seen: dict[str, int] = {}
    place = loading.fetch("fashion-mnist", nowhere / "mine", server.url, lambda file, done: seen.update({file.name: done}))
    assert place == nowhere / "mine" / "fashion-mnist"
    assert seen == {name: len(content) for name, content in server.files.items() if name != "file.bin"}
    assert len(loading.load("fashion-mnist", nowhere / "mine").train_targets) == 7


def test_fetch_to_a_folder_though_it_is_elsewhere(
    server: Server, nowhere: Path, monkeypatch: pytest.MonkeyPatch, fashion_mnist
) -> None:
    fashion_mnist.write(nowhere / "debian", gz=True)
    publish(server, monkeypatch, "fashion-mnist", {path.name: path.read_bytes() for path in (nowhere / "debian").iterdir()})
    assert loading.fetch("fashion-mnist", mirror=server.url) == nowhere / "debian" and server.asked == []
    assert loading.fetch("fashion-mnist", nowhere / "mine", server.url) == nowhere / "mine" / "fashion-mnist"
    assert len(server.asked) == 4


def test_official_files_are_pinned() -> None:
    files = {file for entry in DATA.values() for file in entry.files}
    assert len(files) == 6
    assert all(file.url.startswith("https://") and len(bytes.fromhex(file.sha256)) == 32 for file in files)
    assert sum(file.size for file in files) == 26_421_880 + 29_515 + 4_422_102 + 5_148 + 170_498_071 + 169_001_437
