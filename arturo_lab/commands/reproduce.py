"""``arturo reproduce``: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from arturo_lab.commands.many import RunSet, prepare, train_many
from arturo_lab.commands.options import Against, DataSource, PoolSize
from arturo_lab.commands.planning import Planning
from arturo_lab.errors import ConfigError, RunError
from arturo_lab.fields import REQUIRED, flat, group, option, option_name
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.content import document, drawn_document
from arturo_lab.paper.deviations import deviations
from arturo_lab.paper.scales import SCALES
from arturo_lab.report.comparison import check_reference
from arturo_lab.report.document import Document
from arturo_lab.report.sections import sections
from arturo_lab.runs.collection import read_all
from arturo_lab.runs.compact import NAME, write_compact
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.machine import Machine
from arturo_lab.runs.plan import once, parse_seeds
from arturo_lab.runs.share import Share

DESCRIPTION = (
    "Train the runs that a table or figure of the paper needs and write it as OUT/NAME.md, NAME.json, NAME.png and "
    "NAME.pdf, with the protocol and every difference from the paper's. Artefacts of one OUT share their runs, each is "
    "trained once; `timing` trains separate runs, one after the other: keep the machine otherwise idle. Run the same "
    "command again to resume it."
)
EXAMPLES = """
arturo reproduce table1 --scale cpu --jobs 2
arturo reproduce curves --scale cpu --jobs 2
arturo reproduce train-loss --scale cpu --tasks fmnist-cnn cifar10-cnn
arturo reproduce table1 --scale cpu --no-train
arturo reproduce timing --scale cpu --tasks fmnist-cnn
arturo reproduce table1 --optimizers adamw arturo adaarturo --seeds 1 --epochs 2 --plan
arturo reproduce all --scale full --plan
arturo reproduce table1 --scale full --device cuda --jobs 4 --download
"""
ALL = "all"
TITLES = "; ".join(f"{name}: {each.title}" for name, each in ARTEFACTS.items()) + f"; {ALL}: all of them"
SCALES_HELP = "; ".join(f"{name}: {scale.about}" for name, scale in SCALES.items())


@dataclass(frozen=True, kw_only=True)
class Options:
    artefact: str = option(REQUIRED, TITLES, metavar="NAME", positional=True)
    scale: str = option("cpu", SCALES_HELP, metavar="NAME")
    tasks: tuple[str, ...] = option((), "some of the scale's tasks (default: all of them)", metavar="TASK")
    optimizers: tuple[str, ...] = option((), "optimizers to compare, e.g. your own (default: the artefact's)", metavar="NAME")
    seeds: str | None = option(
        None, "a count N for the seeds 0 to N-1, or the seeds themselves (default: the scale's)", metavar="N|A,B,C"
    )
    no_train: bool = option(False, "use existing runs only; missing ones are listed")
    out: Path | None = option(None, "folder for runs and results (default: runs/SCALE)", metavar="DIR")
    compared: Against = group(Against, "")
    pool: PoolSize = group(PoolSize, "")
    planning: Planning = group(Planning, "")
    share: Share = group(Share, "the tasks, instead of the scale's choice", leave_out=("fold", "validation"))
    machine: Machine = group(Machine, "the machine", leave_out=("parallel",))
    data: DataSource = group(DataSource, "data")


def run(options: Options, argv: Sequence[str]) -> int:
    console = Console()
    scale = SCALES[options.scale]
    artefacts = chosen(options)
    if compared := list(dict.fromkeys(config.optimizer for configs in artefacts.values() for config in configs)):
        check_reference(options.compared.against, compared)
    out: Path = Path("runs") / options.scale if options.out is None else options.out
    code = 0
    sets = [] if options.no_train else run_sets(artefacts, out, options.pool)
    if sets:
        costs = prepare(sets, options.planning, options.data, console)
        if costs is None:
            return 0
        for runs in sets:
            code = max(code, train_many(runs, costs, options.data, argv, console))
            if code > 1:  # interrupted: there is more to come
                return code
    for name, configs in artefacts.items():
        artefact = ARTEFACTS[name]
        if artefact.drawn:
            write(drawn_document(name, artefact.title, f"arturo reproduce {name}", artefact.make()), out, console)
            continue
        folder = out / artefact.folder
        records, problems = read_all(configs, folder)
        for problem in problems:
            print(f"arturo: left out: {problem}", file=sys.stderr)
        if not records:
            raise RunError(f"{folder}: holds none of the {len(configs)} runs needed for {name}")
        result = document(
            name,
            artefact.title,
            f"Scale `{options.scale}`: {scale.about}.",
            made_by(options, name),
            configs,
            records,
            deviations(configs, artefact.timing),
            artefact.make(sections(records), options.compared.against),
        )
        write(result, out, console)
        write_compact(folder / NAME, records)
    return code


def write(result: Document, out: Path, console: Console) -> None:
    result.show(console)
    for path in result.write(out):
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)


def chosen(options: Options) -> dict[str, list[RunConfig]]:
    """The artefacts to make, and the runs that each needs. ``all`` leaves out those that have none of the tasks named."""
    scale = SCALES[options.scale]
    names = [options.artefact] if options.artefact != ALL else list(ARTEFACTS)
    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    once("optimizers", options.optimizers)
    result = {}
    for name in names:
        artefact = ARTEFACTS[name]
        tasks: Sequence[str] | None = options.tasks or None
        if options.artefact == ALL and tasks and not (tasks := [task for task in tasks if task in artefact.known(scale)]):
            continue
        settings = {**flat(options.share), **flat(options.machine)}
        result[name] = artefact.configs(scale, tasks, options.optimizers, seeds, **settings)
    if not result:
        raise ConfigError(f"tasks: no artefact is about {' or '.join(options.tasks)} at --scale {options.scale}")
    return result


def run_sets(artefacts: Mapping[str, Sequence[RunConfig]], out: Path, size: PoolSize) -> list[RunSet]:
    """What to train: the runs that artefacts share, each once; and one at a time those whose time is taken."""
    folders: dict[str, dict[str, RunConfig]] = {}
    for name, configs in artefacts.items():
        if ARTEFACTS[name].drawn:
            continue
        folders.setdefault(ARTEFACTS[name].folder, {}).update({str(config.folder): config for config in configs})
    alone = replace(size, jobs=1)  # they would slow each other down
    return [RunSet(list(runs.values()), out / folder, alone if folder else size) for folder, runs in folders.items()]


def made_by(options: Options, artefact: str) -> str:
    """The command, without what does not affect the numbers."""
    words = ["arturo", "reproduce", artefact, "--scale", options.scale]
    words += ["--tasks", *options.tasks] if options.tasks else []
    words += ["--optimizers", *options.optimizers] if options.optimizers else []
    words += ["--seeds", options.seeds] if options.seeds is not None else []
    words += [] if options.compared.against is None else ["--against", options.compared.against]
    for name, value in {**flat(options.share), **flat(options.machine)}.items():
        if value not in (None, False, "cpu"):
            words += [f"--{option_name(name)}", *([] if value is True else [str(value)])]
    return shlex.join(words)
