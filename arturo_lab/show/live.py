"""The live figure: every step of the race as one HTML file, with arTuRO's trust region up close."""

from __future__ import annotations

from typing import Any

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.page import page
from arturo_lab.report.palette import style
from arturo_lab.report.table import Cell, Column, Row, Table, words
from arturo_lab.report.writers import html
from arturo_lab.show.animation import Ways
from arturo_lab.show.descent import BUILD, SETTINGS, STEPS, TrustRegion
from arturo_lab.show.landscapes import LANDSCAPES
from arturo_lab.show.step_figure import telling_step


def live_page(ways: Ways, at: int | None = None) -> str:
    """The page, opened at step ``at`` (1 is the first), else at the most telling one of the first landscape."""
    steps = max(len(way.points) - 1 for racers in ways.values() for way in racers.values())
    first, racers = next(iter(ways.items()))
    start = at - 1 if at is not None else telling_step(LANDSCAPES[first], racers["arturo"].regions) or 0
    data = {
        "steps": steps,
        "start": start,
        "landscapes": [
            {
                "name": name,
                "window": LANDSCAPES[name].window,
                "minimum": LANDSCAPES[name].minimum,
                "ways": [
                    {
                        "name": optimizer,
                        "light": style(optimizer).light,
                        "dark": style(optimizer).dark,
                        "dashes": " ".join(f"{2 * dash:g}" for dash in style(optimizer).dashes) or "none",
                        "points": way.points.tolist(),
                        "losses": way.losses.tolist(),
                    }
                    for optimizer, way in racers.items()
                ],
                "regions": [region_data(region) for region in racers["arturo"].regions],
            }
            for name, racers in ways.items()
        ],
    }
    return page(
        "show.html",
        ("base.css", "show.css"),
        ("contours.js", "show.js", "theme.js"),
        data,
        steps=steps,
        start=start,
        searched=STEPS,
        optimizers=[(name, OPTIMIZERS[name].label, style(name)) for name in BUILD],
        landscapes=[(name, LANDSCAPES[name].title) for name in ways],
        ends=html(ends_table(ways, steps)),
    )


def region_data(region: TrustRegion) -> dict[str, Any]:
    """What the page draws of a step. ``level`` are the half axes of the model's contour through the mean."""
    level = (((region.num**2 / region.A).sum()) / region.A) ** 0.5
    arrays = {
        "mean": region.mean,
        "radii": region.radii,
        "gradient": region.gradient_end,
        "taken": region.taken,
        "level": level,
    }
    points = {name: array.tolist() for name, array in arrays.items()}
    optimum = region.optimum.tolist() if region.convex else None
    return {**points, "optimum": optimum, "eta": region.eta, "kl": region.kl, "bound": region.bound}


def ends_table(ways: Ways, steps: int) -> Table:
    """Where each optimizer ended, the best of each landscape marked."""
    columns = (
        Column("landscape", align="left"),
        Column("optimizer", align="left"),
        Column("settings", align="left"),
        Column(f"loss after {steps} steps", key="loss", better="lower"),
    )
    rows: list[Row] = []
    for name, racers in ways.items():
        lowest = min((way.losses[-1] for way in racers.values() if not way.diverged), default=None)
        for optimizer, way in racers.items():
            settings = ", ".join(f"{key} {value}" for key, value in SETTINGS[name][optimizer].items())
            end = float(way.losses[-1])
            cell = Cell("diverged") if way.diverged else Cell(f"{end:.1e}", end, best=end == lowest)
            rows.append((words(LANDSCAPES[name].title), words(OPTIMIZERS[optimizer].label), words(settings), cell))
    return Table("landscapes", "Where each optimizer ended", columns, tuple(rows))
