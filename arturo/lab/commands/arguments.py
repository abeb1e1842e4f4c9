"""Arguments that several subcommands share, described once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any, name: str, help_text: str, examples: str) -> argparse.ArgumentParser:
    """A subcommand whose ``--help`` ends with ``examples``, one per line."""
    result: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog="examples:\n" + "".join(f"  {line.strip()}\n" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return result


def add_data(sub: argparse._ActionsContainer) -> None:
    """Where data comes from."""
    sub.add_argument("--data-dir", type=Path, metavar="DIR", help="folder searched for data first (default: $ARTURO_DATA)")
    sub.add_argument("--mirror", metavar="URL", help="download from URL/FILE instead of the official place")
