"""``arturo reproduce``: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from arturo_lab.commands.arguments import add_against, add_command, add_data, add_jobs, add_machine, machine
from arturo_lab.commands.many import read_all, train_many
from arturo_lab.errors import RunError
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.content import document
from arturo_lab.paper.deviations import deviations
from arturo_lab.paper.scales import SCALES
from arturo_lab.report.sections import sections


def add(commands: Any) -> None:
    sub = add_command(
        commands,
        "reproduce",
        "a table or figure of the paper, ours beside the paper's",
        """
        arturo reproduce table1 --scale cpu --jobs 2
        arturo reproduce curves --scale cpu --jobs 2
        arturo reproduce train-loss --scale cpu --tasks fmnist-cnn cifar10-cnn
        arturo reproduce table1 --scale cpu --no-train
        arturo reproduce timing --scale cpu --tasks fmnist-cnn
        arturo reproduce table1 --scale full --device cuda --jobs 4 --download
        """,
    )
    sub.description = (
        "Train what an artefact of the paper needs and write it as OUT/NAME.md, NAME.json, NAME.png and NAME.pdf, with the "
        "protocol and every difference from the paper's. Artefacts of one OUT share their runs, each is trained once; `timing` "
        "has runs of its own, one after the other: leave the machine alone meanwhile. An interrupted command goes on when "
        "given again."
    )
    sub.add_argument("artefact", metavar="NAME", help="; ".join(f"{name}: {each.title}" for name, each in ARTEFACTS.items()))
    scales = "; ".join(f"{name}: {scale.about}" for name, scale in SCALES.items())
    sub.add_argument("--scale", default="cpu", metavar="NAME", help=f"{scales} (default: cpu)")
    sub.add_argument("--tasks", nargs="+", metavar="TASK", help="some of the scale's tasks (default: all of them)")
    add_against(sub)
    add_jobs(sub)
    sub.add_argument("--no-train", action="store_true", help="from the runs that are there, as far as they are")
    sub.add_argument("--out", type=Path, metavar="DIR", help="runs and results go there (default: runs/SCALE)")
    add_machine(sub.add_argument_group("the machine"))
    add_data(sub.add_argument_group("data"))
    sub.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    artefact, scale = ARTEFACTS[arguments.artefact], SCALES[arguments.scale]
    configs = artefact.configs(scale, arguments.tasks, **machine(arguments))
    out: Path = Path("runs") / arguments.scale if arguments.out is None else arguments.out
    folder = out / artefact.folder
    at_once = 1 if artefact.timing else None  # they would slow each other down
    code = 0
    if not arguments.no_train:
        code = train_many(configs, folder, arguments, console, at_once)
        if code > 1:  # interrupted: there is more to come
            return code
    records, problems = read_all(configs, folder)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    if not records:
        raise RunError(f"{folder}: holds none of the {len(configs)} runs that this takes")
    result = document(
        arguments.artefact,
        artefact.title,
        f"Scale `{arguments.scale}`: {scale.about}.",
        made_by(arguments),
        configs,
        records,
        deviations(configs, artefact.timing),
        artefact.make(sections(records), arguments.against),
    )
    result.show(console)
    for path in result.write(out):
        console.print(str(path), soft_wrap=True, highlight=False)
    return code


def made_by(arguments: argparse.Namespace) -> str:
    """The command, without what has no part in the numbers."""
    words = ["arturo", "reproduce", arguments.artefact, "--scale", arguments.scale]
    words += [] if arguments.tasks is None else ["--tasks", *arguments.tasks]
    words += [] if arguments.against is None else ["--against", arguments.against]
    for name, value in machine(arguments).items():
        if value not in (None, False, "cpu"):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
