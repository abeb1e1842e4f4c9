"""The command ``arturo``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from arturo_lab.commands import calibrate, compare, eta, fetch, listing, report, reproduce, train, tune, tune_report
from arturo_lab.errors import LabError
from arturo_lab.show import show

COMMANDS = (train, compare, reproduce, calibrate, tune, tune_report, report, show, listing, fetch, eta)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    0: done, 1: some of many runs failed, 2: something the user can mend, said without a traceback, 130: interrupted by Ctrl-C.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = parser().parse_args(argv, argparse.Namespace(argv=argv))
    try:
        return arguments.run(arguments) or 0
    except LabError as error:
        print(f"arturo: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that cannot be written
        where = f"{error.filename}: " if error.filename else ""
        print(f"arturo: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("arturo: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="arturo",
        description="Train and compare optimizers on real tasks.",
        epilog="examples:\n"
        "  arturo list\n"
        "  arturo fetch cifar10\n"
        "  arturo train digits-mlp --optimizer arturo\n"
        "  arturo compare digits-mlp digits-cnn --optimizers adamw arturo --seeds 5 --jobs 2\n"
        "  arturo reproduce table1 --scale cpu\n"
        "  arturo calibrate fmnist-cnn --epochs 4 --subset 10000\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return result
