"""arTuRO, SGD and Adam on their way down, as an animated GIF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from matplotlib.text import Text
from PIL import Image

from arturo_lab.optimizers.catalog import OPTIMIZERS
from arturo_lab.report.palette import style
from arturo_lab.show.descent import Descent
from arturo_lab.show.landscapes import LANDSCAPES, Landscape
from arturo_lab.show.step_figure import REGION, draw_contours

FRAMES, FRAME_MS, LAST_MS = 90, 80, 3000
DPI = 80
LOWEST = 1e-9  # of the loss axis

# One optimizer after the other, each by landscape: ways[landscape][optimizer].
Ways = Mapping[str, Mapping[str, Descent]]


def frame_steps(steps: int, frames: int = FRAMES) -> list[int]:
    """Which steps to show: every one at first, where they are long, then fewer and fewer.

    Example:
        >>> frame_steps(300, 10)
        [0, 4, 15, 33, 59, 93, 133, 181, 237, 300]
        >>> frame_steps(3, 90)
        [0, 1, 2, 3]
    """
    return sorted({round(steps * (k / (frames - 1)) ** 2) for k in range(frames)})


def animate(ways: Ways, path: Path, advance: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Write the GIF, calling ``advance(done, total)`` after every frame."""
    steps = max(len(way.points) - 1 for racers in ways.values() for way in racers.values())
    shown = frame_steps(steps)
    figure, show = race_figure(ways, steps)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # lays out, and paints everything that does not move
    figure.set_layout_engine("none")
    background = canvas.copy_from_bbox(figure.bbox)

    pictures = []
    for done, step in enumerate(shown, start=1):
        canvas.restore_region(background)
        for artist in show(step):
            figure.draw_artist(artist)
        pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba()).copy()).convert("RGB"))
        advance(done, len(shown))
    # One palette for all frames, without dithering: what stands still is stored once.
    palette = shared_palette(pictures[0], pictures[-1])
    first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    durations = [FRAME_MS] * (len(pictures) - 1) + [LAST_MS]
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)


def shared_palette(background: Image.Image, last: Image.Image) -> Image.Image:
    """The soft shades of the background, found by median cut, and the strong colours on it, which that would average away."""
    shades = background.quantize(128, method=Image.Quantize.MEDIANCUT).getpalette() or []
    strong = last.quantize(127, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([255, 255, 255, *shades[: 3 * 128], *strong[: 3 * 127]])
    return palette


def race_figure(ways: Ways, steps: int) -> tuple[Figure, Callable[[int], list[Artist]]]:
    """The still part, and a function that sets the moving part to a step and returns it."""
    figure = Figure(figsize=(4.4 * len(ways), 6.4), dpi=DPI, layout="constrained")
    panels = figure.subplots(2, len(ways), squeeze=False, height_ratios=[2.6, 1])
    moving: list[tuple[Descent, Line2D, Line2D, Line2D]] = []
    regions: list[tuple[Descent, Ellipse]] = []
    for column, (name, racers) in enumerate(ways.items()):
        above, below = panels[0, column], panels[1, column]
        still_life(above, below, LANDSCAPES[name], steps)
        for optimizer, way in racers.items():
            look = style(optimizer)
            (trail,) = above.plot([], [], color=look.light, linewidth=1.5, animated=True, zorder=4)
            (head,) = above.plot([], [], "o", color=look.light, markeredgecolor="white", markersize=8, animated=True, zorder=6)
            (curve,) = below.plot([], [], color=look.light, linestyle=look.linestyle, linewidth=1.6, animated=True)
            moving.append((way, trail, head, curve))
            if way.regions:
                region = Ellipse((0, 0), 0, 0, facecolor=(*rgb(REGION), 0.18), edgecolor=REGION, animated=True, zorder=3)
                above.add_patch(region)
                regions.append((way, region))
    clock = figure.text(0.995, 0.995, "", ha="right", va="top", fontsize=10, family="monospace", animated=True)
    looks = {name: style(name) for racers in ways.values() for name in racers}
    handles = [
        Line2D([], [], color=look.light, linestyle=look.linestyle, linewidth=1.8, marker="o", label=OPTIMIZERS[name].label)
        for name, look in looks.items()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=11, handlelength=3)
    return figure, lambda step: moved(step, moving, regions, clock)


def still_life(above: Axes, below: Axes, landscape: Landscape, steps: int) -> None:
    """Contours and the minimum above, empty axes for the loss below."""
    draw_contours(above, landscape, landscape.window, lines=16)
    above.plot(*landscape.minimum, marker="*", color="black", markersize=11, zorder=2)
    above.set_xlim(*landscape.window[:2])
    above.set_ylim(*landscape.window[2:])
    above.set_title(landscape.title, loc="left", fontsize=12, fontweight="bold")
    above.set_xticks([])
    above.set_yticks([])
    above.spines[:].set_color("0.7")
    below.set_xlim(0, steps)
    below.set_ylim(LOWEST, 1e3)
    below.set_yscale("log")
    below.set_xlabel("step", fontsize=9)
    below.set_title("loss", loc="left", fontsize=9)
    below.tick_params(labelsize=8)
    below.grid(color="0.92", linewidth=0.8)
    below.spines[["top", "right"]].set_visible(False)


def moved(
    step: int, moving: list[tuple[Descent, Line2D, Line2D, Line2D]], regions: list[tuple[Descent, Ellipse]], clock: Text
) -> list[Artist]:
    """Set everything to ``step``. Who diverged stays where it was last seen."""
    for way, trail, head, curve in moving:
        last = min(step, len(way.points) - 1)
        trail.set_data(*way.points[: last + 1].T)
        head.set_data(*way.points[last : last + 1].T)
        curve.set_data(np.arange(last + 1), np.maximum(way.losses[: last + 1], LOWEST))
    for way, ellipse in regions:
        region = way.regions[min(step, len(way.regions) - 1)]  # the region of the step about to be taken
        ellipse.set_center((region.mean[0], region.mean[1]))
        ellipse.width, ellipse.height = 2 * region.radii
    clock.set_text(f"step {step:3d}")
    artists: list[Artist] = [ellipse for _, ellipse in regions]
    return [*artists, *(line for _, *lines in moving for line in lines), clock]


def rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue
