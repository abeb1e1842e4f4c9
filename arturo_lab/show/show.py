"""``arturo show trust-region``: the paper's first figure made live, on landscapes of two weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from arturo_lab.fields import REQUIRED, option
from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.registry import ConfigError, Registry
from arturo_lab.report.table import Cell, Column, Table, words
from arturo_lab.report.writers import show
from arturo_lab.show.animation import Ways, animate
from arturo_lab.show.descent import BUILD, SETTINGS, STEPS, descend
from arturo_lab.show.landscapes import LANDSCAPES
from arturo_lab.show.live import live_page
from arturo_lab.show.step_figure import better_than_gradient, step_figure

# What to write, and the file it goes to.
FORMATS: Registry[str] = Registry(
    "format", {"png": "trust-region.png", "pdf": "trust-region.pdf", "gif": "race.gif", "html": "trust-region.html"}
)


DESCRIPTION = "Draw arTuRO's trust region on landscapes of two weights, and race it against SGD and Adam."
EXAMPLES = """
arturo show trust-region
arturo show trust-region --landscape beale --at 4 --format png pdf
arturo show trust-region --landscape rosenbrock noisy-quadratic --seed 7 --out figures
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    what: str = option(REQUIRED, "trust-region", metavar="WHAT", positional=True)
    landscape: tuple[str, ...] = option(tuple(LANDSCAPES), "what to descend", metavar="NAME")
    steps: int = option(STEPS, "steps of every optimizer", metavar="N")
    seed: int = option(0, "shifts the start and draws the noise", metavar="S")
    at: int | None = option(None, "the step to draw in the figure (default: the most telling one)", metavar="STEP")
    format: tuple[str, ...] = option(tuple(FORMATS), "what to write", metavar="F")
    out: Path = option(Path("runs/show"), "folder for the files", metavar="DIR")


def run(options: Options, argv: Sequence[str]) -> None:
    console = Console()
    Registry("what", {"trust-region": None})[options.what]
    for name in options.format:
        _ = FORMATS[name]
    ways = race(options.landscape, options.steps, options.seed)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("drawing", total=None)
        paths = write(
            ways, options.out, options.format, options.at, lambda done, of: progress.update(bar, completed=done, total=of)
        )
    show(table(ways), console)
    for path in paths:
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)


def race(landscapes: Sequence[str], steps: int = STEPS, seed: int = 0) -> Ways:
    """Every optimizer on every landscape, with the settings of ``SETTINGS``."""
    if len(set(landscapes)) < len(landscapes):
        raise ConfigError(f"landscape: named twice in {' '.join(landscapes)}")
    chosen = [(name, LANDSCAPES[name]) for name in landscapes]
    return {name: {o: descend(landscape, o, SETTINGS[name][o], steps, seed) for o in BUILD} for name, landscape in chosen}


def write(
    ways: Ways, folder: Path, formats: Sequence[str], at: int | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:  # fmt: skip
    """Write the files of ``formats`` to ``folder``; return their paths."""
    targets = {name: folder / FORMATS[name] for name in dict.fromkeys(formats)}
    taken = min(len(racers["arturo"].regions) for racers in ways.values())
    if at is not None and not 1 <= at <= taken:
        raise ConfigError(f"at: must be a step between 1 and {taken}, got {at}")
    stills = [targets[name] for name in ("png", "pdf") if name in targets]
    # Drawn before the folder is made: it may say no.
    figure = step_figure({name: racers["arturo"] for name, racers in ways.items()}, at) if stills else None
    folder.mkdir(parents=True, exist_ok=True)
    for path in stills:
        assert figure is not None
        figure.savefig(path, dpi=160, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    if "html" in targets:
        targets["html"].write_text(live_page(ways, at), encoding="utf-8")
    if "gif" in targets:
        animate(ways, targets["gif"], advance)
    return list(targets.values())


def table(ways: Ways) -> Table:
    """The loss after the last step, the lowest of each landscape marked; and how often the model beat the gradient."""
    columns = (
        Column("landscape", align="left"),
        *(Column(OPTIMIZERS[optimizer].label, key=optimizer, better="lower") for optimizer in BUILD),
        Column("model beats gradient", key="model_beats_gradient"),
    )
    rows = []
    for name, racers in ways.items():
        ends = {optimizer: math.inf if way.diverged else float(way.losses[-1]) for optimizer, way in racers.items()}
        lowest = min(ends.values())
        cells = [Cell("diverged") if end == math.inf else Cell(f"{end:.1e}", end, best=end == lowest) for end in ends.values()]
        better, cut = better_than_gradient(LANDSCAPES[name], racers["arturo"].regions)
        rows.append((words(LANDSCAPES[name].title), *cells, Cell(f"{better} of {cut}", better, fields={"cut_short": cut})))
    note = "Last column: steps that ended lower than a gradient step of the same KL, of those the bound cut short."
    return Table("landscapes", "Loss after the last step", columns, tuple(rows), (note,))
