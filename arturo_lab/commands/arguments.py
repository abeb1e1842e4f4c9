"""Arguments that several subcommands share, described once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arturo_lab.errors import ConfigError


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
    sub.add_argument("--download", action="store_true", help="fetch the data if it is not found")
    sub.add_argument("--mirror", metavar="URL", help="download from URL/FILE instead of the official place")


def add_scale(sub: argparse._ActionsContainer) -> None:
    """How much of a task."""
    sub.add_argument("--epochs", type=int, metavar="E", help="default: the task's own; the schedule is stretched to fit")
    sub.add_argument("--subset", type=int, metavar="N", help="the first N training images of a fixed shuffled order")
    sub.add_argument("--batch-size", type=int, metavar="B", help="default: the task's own")


def add_set(sub: argparse._ActionsContainer, form: str, help_text: str) -> None:
    """An optimizer's arguments, each of this form; the option may be given several times."""
    sub.add_argument("--set", nargs="+", action="extend", default=[], metavar=form, help=help_text)


def add_machine(sub: argparse._ActionsContainer) -> None:
    """What a training runs on. Read by :func:`machine`."""
    sub.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    sub.add_argument("--threads", type=int, metavar="N", help="of the CPU (default: the task's, else torch's choice)")
    sub.add_argument("--amp", metavar="TYPE", help="bf16: forward pass and loss in bfloat16 where torch holds it safe")
    sub.add_argument("--compile", action="store_true", help="the network through torch.compile, on the first epoch's time")
    sub.add_argument(
        "--channels-last",
        action="store_true",
        help="torch's memory format of that name, in which a CPU convolves faster",
    )


def machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same as options of :meth:`arturo_lab.runs.config.RunConfig.for_task`."""
    return {name: getattr(arguments, name) for name in ("device", "threads", "amp", "compile", "channels_last")}


def add_jobs(sub: argparse._ActionsContainer) -> None:
    """How many at once, and where. Read by :func:`jobs` and :func:`arturo_lab.commands.many.crew`."""
    sub.add_argument("--jobs", type=int, metavar="K", help="trainings at the same time (default: 1; with --ray: all that fit)")
    sub.add_argument("--ray", metavar="ADDRESS", help="train on this Ray cluster; auto: the one that this machine is a node of")


def jobs(arguments: argparse.Namespace) -> int | None:
    """As given."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ConfigError(f"jobs: must be an integer >= 1, got {arguments.jobs}")
    return arguments.jobs  # type: ignore[no-any-return]


def add_target(sub: argparse._ActionsContainer) -> None:
    """The accuracy whose time is told. Read by :func:`target`."""
    sub.add_argument("--target", type=float, metavar="F", help="accuracy to time, a fraction (default: the middle optimizer's)")


def target(arguments: argparse.Namespace) -> float | None:
    value: float | None = arguments.target
    if value is not None and not 0 < value <= 1:
        raise ConfigError(f"target: must be a fraction above 0 and up to 1, such as 0.9, got {value:g}")
    return value


def add_against(sub: argparse._ActionsContainer) -> None:
    """What everything is compared with."""
    sub.add_argument(
        "--against",
        metavar="NAME",
        help="optimizer that the others are tested against, or all for every pair (default: adamw, else every pair)",
    )
