"""``arturo watch DIR``: a live report in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.many import shown
from arturo_lab.commands.options import Goal
from arturo_lab.errors import ConfigError
from arturo_lab.fields import REQUIRED, group, option
from arturo_lab.report.watch import LiveReport, report_of, server

DESCRIPTION = (
    "Serve the report of `arturo report` to a browser on this machine and refresh it while runs train, until Ctrl-C. "
    "It only reads: any number of commands may train into DIR meanwhile, and DIR may still be empty."
)
EXAMPLES = """
arturo watch runs
arturo watch runs/league --against adamw --port 9000
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    dir: Path = option(REQUIRED, "a folder with run folders in it, at any depth", metavar="DIR", positional=True)
    goal: Goal = group(Goal, "")
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 lets other machines connect", metavar="ADDRESS")
    port: int = option(8321, "port to listen on; 0 picks a free one", metavar="N", lowest=0, highest=65535)


def run(options: Options, argv: Sequence[str]) -> None:
    if options.dir.exists() and not options.dir.is_dir():
        raise ConfigError(f"DIR: {options.dir} is not a folder")
    goal, command = options.goal, shown(argv)
    live = LiveReport(options.dir, lambda root: report_of(root, command, goal.target, goal.against))
    with server(live, options.host, options.port) as running:
        host, port = running.server_address[:2]
        Console().print(f"http://{host!s}:{port}/  (Ctrl-C ends)", highlight=False, soft_wrap=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            Console().print("ended")
