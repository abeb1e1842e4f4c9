"""The live figure: every step of the race as one HTML file, with arTuRO's trust region up close."""

from __future__ import annotations

from typing import Any

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.page import escape, key, page
from arturo_lab.report.palette import style
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
    parts = {
        "steps": str(steps),
        "start": str(start),
        "searched": str(STEPS),
        "toggles": "".join(map(toggle, BUILD)),
        "sections": "".join(map(section, ways)),
        "rows": "".join(rows(name, ways) for name in ways),
    }
    styles, scripts = ("base.css", "show.css"), ("contours.js", "show.js", "theme.js")
    return page("arTuRO: the trust region, step by step", "show.html", parts, data, styles, scripts)


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


def toggle(optimizer: str) -> str:
    label = f"{key(style(optimizer))}{escape(OPTIMIZERS[optimizer].label)}"
    return f'<button type="button" aria-pressed="true" data-optimizer="{escape(optimizer)}">{label}</button>'


def section(name: str) -> str:
    title = escape(LANDSCAPES[name].title)
    views = (("the whole landscape", "ground", 400), ("the trust region, up close", "ground", 400), ("loss", "curve", 400))
    figures = "".join(
        f'<figure><figcaption>{caption}</figcaption><svg class="{kind}" viewBox="0 0 400 {height}" role="img" '
        f'aria-label="{title}: {caption}"></svg></figure>'
        for caption, kind, height in views
    )
    inside = f'<h2>{title}</h2><div class="panels">{figures}</div><p class="said"></p>'
    return f'<section class="landscape" id="{escape(name)}">{inside}</section>'


def rows(name: str, ways: Ways) -> str:
    ends = {optimizer: way.losses[-1] for optimizer, way in ways[name].items() if not way.diverged}
    cells = []
    for optimizer, way in ways[name].items():
        settings = ", ".join(f"{key} {value}" for key, value in SETTINGS[name][optimizer].items())
        end = "diverged" if way.diverged else f"{way.losses[-1]:.1e}"
        best = ' class="best"' if optimizer in ends and ends[optimizer] == min(ends.values()) else ""
        cells.append(
            f"<tr><td>{escape(LANDSCAPES[name].title)}</td><td>{escape(OPTIMIZERS[optimizer].label)}</td>"
            f"<td>{escape(settings)}</td><td{best}>{end}</td></tr>"
        )
    return "".join(cells)
