"""What an artefact shows, and the document around it: protocol, differences from the paper, environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from arturo_lab.report.document import Document, Part
from arturo_lab.report.table import Column, Table, number, words
from arturo_lab.report.wording import count, seed_words
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.records import Record


@dataclass(frozen=True)
class Content:
    """A table, what is said above and below it, and a figure."""

    table: Table
    after: tuple[str, ...] = ()
    figure: Figure | None = None
    before: tuple[str, ...] = ()


def document(
    name: str,
    title: str,
    scale: str,
    command: str,
    configs: Sequence[RunConfig],
    records: Sequence[Record],
    deviations: Sequence[str],
    content: Content,
) -> Document:
    """An artefact with everything one must know to judge it. ``scale`` in words."""
    missing = len(configs) - sum(record.status != "unfinished" for record in records)
    warning = (f"**Incomplete: {missing} of {count(len(configs), 'run')} are missing.**",) if missing else ()
    machines = environments(records)
    parts = (
        Part("", (scale, *warning), content.table, content.after, content.figure),
        Part("Protocol", (), protocol(configs), shown=False),
        Part("What differs from the paper", (bullets(deviations) or "Nothing.",)),
        Part("Environment", (bullets(machines) or "Not recorded.",), shown=False),
    )
    facts = {"scale": scale, "missing_runs": missing, "deviations": list(deviations), "environments": machines}
    return Document(name, title, command, parts, facts)


def drawn_document(name: str, title: str, command: str, content: Content) -> Document:
    """An artefact that needs no runs."""
    return Document(name, title, command, (Part("", content.before, content.table, content.after, content.figure),))


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def protocol(configs: Sequence[RunConfig]) -> Table:
    """How each task was run."""
    columns = (
        Column("task", align="left"),
        Column("epochs"),
        Column("images"),
        Column("batch", key="batch_size"),
        Column("seeds"),
        Column("optimizers", align="left", wrap=True),
    )
    rows = []
    for task in dict.fromkeys(config.task for config in configs):
        mine = [config for config in configs if config.task == task]
        first = mine[0]
        rows.append(
            (
                words(task),
                number(first.epochs, str(first.epochs)),
                number(first.training_images, f"{first.training_images:,}"),
                number(first.batch_size, str(first.batch_size)),
                words(seed_words(sorted({config.seed for config in mine})).partition(" ")[2]),
                words(" ".join(dict.fromkeys(config.optimizer for config in mine))),
            )
        )
    return Table("protocol", "Protocol", columns, tuple(rows))


def environments(records: Sequence[Record]) -> list[str]:
    """Each machine and set of versions that took part, once."""
    keys = ("torch", "python", "arturo", "revision", "cpu", "cores", "device")
    described = (
        ", ".join(f"{key} {record.environment[key]}" for key in keys if record.environment.get(key) is not None)
        for record in records
    )
    return [line for line in dict.fromkeys(described) if line]
