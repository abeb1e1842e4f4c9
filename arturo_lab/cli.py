"""The command ``arturo``. A subcommand is imported when it is used, and torch with it: ``arturo --help`` needs neither."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arturo_lab.commands.parser import Parser, add_options, read_options
from arturo_lab.errors import ConfigError, LabError
from arturo_lab.registry import Registry

PACKAGES = ("rich", "jinja2", "matplotlib", "PIL", "sklearn", "scipy")  # what the extra [lab] installs, as it is imported


@dataclass(frozen=True)
class Command:
    """A module with ``Options``, a dataclass whose fields are the options; ``run(options, argv)``, which returns the exit code
    or None for 0; ``EXAMPLES``, a line each; and ``DESCRIPTION`` if ``about`` does not say enough.
    """

    module: str
    about: str  # a line of `arturo --help`


COMMANDS: Registry[Command] = Registry(
    "command",
    {
        "train": Command("arturo_lab.commands.train", "train one network; metrics and result go to a run folder"),
        "compare": Command("arturo_lab.commands.compare", "compare optimizers on the same seeds: table, figures, page, JSON"),
        "reproduce": Command("arturo_lab.commands.reproduce", "make a table or figure of the paper, ours beside the paper's"),
        "calibrate": Command(
            "arturo_lab.commands.calibrate", "score predicted probabilities: the posterior, IVON, Laplace, dropout, an ensemble"
        ),
        "tune": Command("arturo_lab.commands.tune", "search an optimizer's hyperparameters by cross-validation"),
        "tune-report": Command("arturo_lab.commands.tune_report", "show several searches side by side"),
        "report": Command("arturo_lab.commands.report", "turn run folders into tables, one HTML page, and figures"),
        "watch": Command("arturo_lab.commands.watch", "show the report in a browser and refresh it as runs train"),
        "sweep": Command("arturo_lab.commands.sweep", "train over a range of learning rates to see how much they matter"),
        "league": Command(
            "arturo_lab.commands.league", "many optimizers on many tasks, untouched and tuned, resumed over days"
        ),
        "show": Command("arturo_lab.show.show", "draw the trust region on landscapes: figure, animation, live page"),
        "list": Command("arturo_lab.commands.listing", "list the tasks, the optimizers, and the data sets"),
        "fetch": Command("arturo_lab.commands.fetch", "download data sets, checked and resumable"),
        "eta": Command("arturo_lab.commands.eta", "propose a fixed multiplier for arturo-fixed-eta"),
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    0: done, 1: some of many runs failed, 2: an error that the user can fix, printed without a traceback,
    130: interrupted by Ctrl-C.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return run(argv)
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


def run(argv: Sequence[str]) -> int:
    top = parser()
    if not argv or argv[0].startswith("-"):
        top.parse_args(argv)  # --help and --version end here
        raise ConfigError("command: missing; `arturo --help` lists them")
    module, options = parse(argv)
    return module.run(options, argv) or 0


def parse(argv: Sequence[str]) -> tuple[Any, Any]:
    """The module of the command that ``argv`` names, and its ``Options``."""
    command = COMMANDS[argv[0]]
    module = load(command)
    words = subparser(argv[0], command, module).parse_args(argv[1:])
    return module, read_options(module.Options, words)


def load(command: Command) -> Any:
    """Its module, or a line on what has to be installed: the library alone does not bring the laboratory's packages."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(f"the laboratory needs {', '.join(missing)}; to install it: pip install 'arturo[lab]'")
    return importlib.import_module(command.module)


def parser() -> Parser:
    """What ``arturo --help`` and ``arturo --version`` need."""
    width = max(map(len, COMMANDS))
    listed = "".join(f"  {name:{width}}  {command.about}\n" for name, command in COMMANDS.items())
    result = Parser(
        prog="arturo",
        usage="arturo [--help] [--version] COMMAND ...",
        description=f"Train and compare optimizers on real tasks.\n\ncommands:\n{listed}",
        epilog="examples:\n"
        "  arturo list\n"
        "  arturo fetch cifar10\n"
        "  arturo train digits-mlp --optimizer arturo\n"
        "  arturo compare digits-mlp digits-cnn --optimizers adamw arturo --seeds 5 --jobs 2\n"
        "  arturo reproduce table1 --scale cpu\n"
        "  arturo calibrate fmnist-cnn --epochs 4 --subset 10000\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    return result


class Version(argparse.Action):
    """Looks the version up when asked: the package's metadata, as importing the package would import torch."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"arturo {version('arturo')}")
        parser.exit()


def subparser(name: str, command: Command, module: Any) -> Parser:
    """The command line of one subcommand, generated from its ``Options``."""
    about = getattr(module, "DESCRIPTION", command.about[0].upper() + command.about[1:] + ".")
    result = Parser(
        prog=f"arturo {name}",
        description=textwrap.fill(
            about, shutil.get_terminal_size().columns - 2, break_on_hyphens=False
        ),  # examples stay as they are, one per line
        epilog="examples:\n" + "".join(f"  {line.strip()}\n" for line in module.EXAMPLES.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(result, module.Options)
    return result
