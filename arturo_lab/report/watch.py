"""The report of runs that are going on, served to a browser on this machine: the same page, made anew when a run has news."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from arturo_lab.errors import ConfigError
from arturo_lab.report.report import Report
from arturo_lab.report.sections import sections
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.records import Problem

FILES = ("config.json", "metrics.jsonl", "result.json")  # of a run folder, and what its page depends on


def signature(root: Path) -> str:
    """Another one as soon as a run begins, ends an epoch, or is over."""
    digest = hashlib.sha256()
    for path in sorted(path for name in FILES for path in root.rglob(name)):
        try:
            state = path.stat()
        except FileNotFoundError:  # replaced just now: the next look sees it
            continue
        digest.update(f"{path} {state.st_mtime_ns} {state.st_size}\n".encode())
    return digest.hexdigest()[:16]


class LiveReport:
    """The page of a folder, made again when :func:`signature` changes."""

    def __init__(self, root: Path, make: Callable[[Path], Report]) -> None:
        self.root, self.make = root, make
        self.lock = Lock()  # two browsers do not make the same page at once
        self.current = ("", "")

    def page(self) -> str:
        with self.lock:
            now = signature(self.root)
            if self.current[0] != now:
                self.current = (now, self.make(self.root).page(live=now))
            return self.current[1]


def report_of(root: Path, command: str, target: float | None, against: str | None) -> Report:
    """The runs so far. Without any, a page without tasks; while nobody has run ``against``, a comparison of all pairs."""
    try:
        records, problems = read_runs(root)
    except ConfigError as error:
        return Report([], [Problem(Path("."), str(error).partition(": ")[2])], command)
    try:
        return Report(sections(records), problems, command, target, against)
    except ConfigError:
        return Report(sections(records), problems, command, target)


def server(live: LiveReport, host: str, port: int) -> ThreadingHTTPServer:
    """Answers ``/`` with the page and ``/signature`` with what it shows. Nothing else is served, and nothing is written."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self.answer(200, "text/html; charset=utf-8", live.page())
            elif self.path == "/signature":
                self.answer(200, "text/plain", signature(live.root))
            else:
                self.answer(404, "text/plain", "not here; the report is at /\n")

        def answer(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """A browser that asks every two seconds is no news."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port: cannot listen on {host}:{port} ({error}); choose another with --port, 0 for any") from error
