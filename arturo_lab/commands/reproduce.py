"""``arturo reproduce``: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.many import train_many
from arturo_lab.commands.options import Against, DataSource, PoolSize
from arturo_lab.errors import RunError
from arturo_lab.fields import REQUIRED, flat, group, option, option_name
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.content import document
from arturo_lab.paper.deviations import deviations
from arturo_lab.paper.scales import SCALES
from arturo_lab.report.sections import sections
from arturo_lab.runs.collection import read_all
from arturo_lab.runs.machine import Machine

DESCRIPTION = (
    "Train what an artefact of the paper needs and write it as OUT/NAME.md, NAME.json, NAME.png and NAME.pdf, with the "
    "protocol and every difference from the paper's. Artefacts of one OUT share their runs, each is trained once; `timing` "
    "trains separate runs, one after the other: leave the machine alone meanwhile. Run the same command again to resume it."
)
EXAMPLES = """
arturo reproduce table1 --scale cpu --jobs 2
arturo reproduce curves --scale cpu --jobs 2
arturo reproduce train-loss --scale cpu --tasks fmnist-cnn cifar10-cnn
arturo reproduce table1 --scale cpu --no-train
arturo reproduce timing --scale cpu --tasks fmnist-cnn
arturo reproduce table1 --scale full --device cuda --jobs 4 --download
"""
TITLES = "; ".join(f"{name}: {each.title}" for name, each in ARTEFACTS.items())
SCALES_HELP = "; ".join(f"{name}: {scale.about}" for name, scale in SCALES.items())


@dataclass(frozen=True, kw_only=True)
class Options:
    artefact: str = option(REQUIRED, TITLES, metavar="NAME", positional=True)
    scale: str = option("cpu", SCALES_HELP, metavar="NAME")
    tasks: tuple[str, ...] = option((), "some of the scale's tasks (default: all of them)", metavar="TASK")
    no_train: bool = option(False, "use existing runs only; missing ones are listed")
    out: Path | None = option(None, "folder for runs and results (default: runs/SCALE)", metavar="DIR")
    compared: Against = group(Against, "")
    pool: PoolSize = group(PoolSize, "")
    machine: Machine = group(Machine, "the machine", leave_out=("parallel",))
    data: DataSource = group(DataSource, "data")


def run(options: Options, argv: Sequence[str]) -> int:
    console = Console()
    artefact, scale = ARTEFACTS[options.artefact], SCALES[options.scale]
    configs = artefact.configs(scale, options.tasks or None, **flat(options.machine))
    out: Path = Path("runs") / options.scale if options.out is None else options.out
    folder = out / artefact.folder
    size = replace(options.pool, jobs=1) if artefact.timing else options.pool  # they would slow each other down
    code = 0
    if not options.no_train:
        code = train_many(configs, folder, size, options.data, argv, console)
        if code > 1:  # interrupted: there is more to come
            return code
    records, problems = read_all(configs, folder)
    for problem in problems:
        print(f"arturo: left out: {problem}", file=sys.stderr)
    if not records:
        raise RunError(f"{folder}: holds none of the {len(configs)} runs needed")
    result = document(
        options.artefact,
        artefact.title,
        f"Scale `{options.scale}`: {scale.about}.",
        made_by(options),
        configs,
        records,
        deviations(configs, artefact.timing),
        artefact.make(sections(records), options.compared.against),
    )
    result.show(console)
    for path in result.write(out):
        console.print(str(path), soft_wrap=True, highlight=False)
    return code


def made_by(options: Options) -> str:
    """The command, without what does not affect the numbers."""
    words = ["arturo", "reproduce", options.artefact, "--scale", options.scale]
    words += ["--tasks", *options.tasks] if options.tasks else []
    words += [] if options.compared.against is None else ["--against", options.compared.against]
    for name, value in flat(options.machine).items():
        if value not in (None, False, "cpu"):
            words += [f"--{option_name(name)}", *([] if value is True else [str(value)])]
    return shlex.join(words)
