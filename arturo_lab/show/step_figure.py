"""The paper's first figure, from a real run: one step of arTuRO on a two-dimensional landscape.

Everything drawn comes out of the optimizer's state: the ellipse from its precision and bound, the model from its filter,
the arrow from where it went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, FancyArrowPatch, Patch

from arturo_lab.registry import ConfigError
from arturo_lab.report.palette import BLUE, GREEN, VERMILION
from arturo_lab.show.descent import Array, Descent, TrustRegion
from arturo_lab.show.landscapes import LANDSCAPES, Landscape

Window = tuple[float, float, float, float]
Style = tuple[int, tuple[float, ...]]  # matplotlib's dashes
HEIGHTS = LinearSegmentedColormap.from_list("heights", ["#ffffff", "#f1f0ea", "#d9d6cb"])  # valleys are light
DASHED, DOTTED = (0, (4.0, 2.0)), (0, (1.2, 1.2))
REGION, MODEL, TAKEN, GRADIENT = BLUE[0], GREEN[0], VERMILION[0], "#222222"


def telling_step(landscape: Landscape, regions: Sequence[TrustRegion]) -> int | None:
    """Which step to show (0 is the first, None: no step will do): the one that gains most over a gradient step.

    Chosen from the first tenth of the run, where steps are long, among those that the bound cut short and that a picture
    can show: the model has a minimum, in the landscape's window and not beyond six times the step, and the region is no
    needle. The gradient step has the same KL. It is an illustration; :func:`better_than_gradient` says how often it is so.
    """
    left, right, low, high = landscape.window

    def gain(region: TrustRegion) -> float:
        if not region.convex or region.eta == 0:
            return -np.inf
        x, y = region.optimum
        far = np.linalg.norm(region.optimum - region.mean) / np.linalg.norm(region.taken - region.mean)
        needle = region.radii.max() > 8 * region.radii.min()
        if not (left < x < right and low < y < high and 1.2 < far < 6) or needle:
            return -np.inf
        along_gradient, taken = losses(landscape, region.gradient_end, region.taken)
        return along_gradient - taken

    gains = [gain(region) for region in regions[: max(len(regions) // 10, 1)]]
    best = int(np.argmax(gains))
    return None if gains[best] == -np.inf else best


def better_than_gradient(landscape: Landscape, regions: Sequence[TrustRegion]) -> tuple[int, int]:
    """How many of the steps that the bound cut short end lower than a gradient step of the same KL, and out of how many."""
    cut = [region for region in regions if region.eta > 0]
    ends = [losses(landscape, region.taken, region.gradient_end) for region in cut]
    return sum(taken < along_gradient for taken, along_gradient in ends), len(cut)


def losses(landscape: Landscape, *points: Array) -> list[float]:
    """The loss at each point, without noise."""
    values: list[float] = landscape.loss(torch.from_numpy(np.stack(points))).tolist()
    return values


def step_figure(descents: Mapping[str, Descent], at: int | None = None) -> Figure:
    """One panel per landscape with one of its steps: number ``at`` (1 is the first), else the most telling one."""
    columns = {1: 1, 2: 3}.get(len(descents), 5)
    rows = math.ceil(len(legend_entries()) / columns)
    result = Figure(figsize=(4.3 * len(descents), 4.85 + 0.2 * rows), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.09))
    FigureCanvasAgg(result)
    panels = result.subplots(1, len(descents), squeeze=False)[0]
    for axes, (name, descent) in zip(panels, descents.items(), strict=True):
        landscape = LANDSCAPES[name]
        t = telling_step(landscape, descent.regions) if at is None else at - 1
        if t is None:
            raise ConfigError(
                f"steps: the first tenth of {len(descent.regions)} on {name} has none that makes a picture; take more, another "
                "seed, or name one with --at"
            )
        draw_step(axes, landscape, descent, t)
    result.legend(handles=legend_entries(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return result


def draw_step(axes: Axes, landscape: Landscape, descent: Descent, t: int) -> None:
    """The contours of the loss and of the model, the trust region, and the three steps from its centre."""
    region = descent.regions[t]
    window = around(region)
    draw_contours(axes, landscape, window)
    axes.plot(*descent.points[: t + 1].T, color="0.45", linewidth=0.9, marker=".", markersize=3.5, zorder=3)
    if region.convex:
        for share in (0.35, 0.65, 1.0):  # ellipses on which the model has one value; the last goes through the mean
            half_axes = share * np.sqrt(np.sum(region.num**2 / region.A) / region.A)
            axes.add_patch(ellipse(region.optimum, half_axes, fill=False, edgecolor=MODEL, linestyle=":", linewidth=0.9))
        axes.plot(*region.optimum, marker="x", color=MODEL, markersize=7, markeredgewidth=2, zorder=6)
        arrow(axes, region.mean, region.optimum, MODEL, width=1.5, style=DASHED)
    axes.add_patch(ellipse(region.mean, region.radii, facecolor=REGION, alpha=0.16, linewidth=0))
    axes.add_patch(ellipse(region.mean, region.radii, fill=False, edgecolor=REGION, linewidth=1.8))
    arrow(axes, region.mean, region.gradient_end, GRADIENT, width=1.5, style=DOTTED)
    arrow(axes, region.mean, region.taken, TAKEN, width=2.8)
    axes.plot(*region.mean, marker="o", color="white", markeredgecolor="black", markersize=6, zorder=8)
    x, y = landscape.minimum
    if window[0] < x < window[1] and window[2] < y < window[3]:
        axes.plot(x, y, marker="*", color="black", markersize=9, zorder=5)

    axes.set_xlim(*window[:2])
    axes.set_ylim(*window[2:])
    axes.set_aspect("equal")
    axes.tick_params(labelsize=8, colors="0.35")
    axes.spines[:].set_color("0.7")
    axes.set_title(landscape.title, fontsize=11, loc="left", fontweight="bold")
    axes.set_title(f"step {t + 1}", fontsize=9, loc="right", color="0.35")
    before, taken, along_gradient = losses(landscape, region.mean, region.taken, region.gradient_end)
    axes.set_xlabel(
        f"loss {before:.3g} → {taken:.3g};  {along_gradient:.3g} along the gradient\n"
        f"KL = {region.kl:.3g} of {region.bound:.3g} nats,  $\\eta$ = {region.eta:.3g}",
        fontsize=9,
        linespacing=1.5,
    )


def draw_contours(axes: Axes, landscape: Landscape, window: Window, lines: int = 14) -> None:
    """Levels at equal ratios: valleys and walls are both seen."""
    x, y, loss = surface(landscape, window)
    highest = float(loss.max())
    lowest = max(float(loss.min()), 1e-3 * highest)
    norm, shades = LogNorm(lowest, highest, clip=True), np.geomspace(lowest, highest, 4 * lines)
    axes.contourf(x, y, loss, levels=[0, *shades[1:-1], 1.01 * highest], cmap=HEIGHTS, norm=norm, zorder=0)
    axes.contour(x, y, loss, levels=np.geomspace(lowest, highest, lines)[1:], colors="0.66", linewidths=0.6, zorder=1)


def surface(landscape: Landscape, window: Window, points: int = 240) -> tuple[Array, Array, Array]:
    """The loss on a grid over the window."""
    left, right, low, high = window
    x, y = np.meshgrid(np.linspace(left, right, points), np.linspace(low, high, points))
    return x, y, landscape.loss(torch.from_numpy(np.stack([x, y], axis=-1))).numpy()


def around(region: TrustRegion, margin: float = 0.14) -> Window:
    """A square window that holds the region and all three steps."""
    corners = [region.mean - region.radii, region.mean + region.radii, region.taken, region.gradient_end]
    corners += [region.optimum] if region.convex else []
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    centre, half = (low + high) / 2, (0.5 + margin) * float((high - low).max())
    return centre[0] - half, centre[0] + half, centre[1] - half, centre[1] + half


def ellipse(centre: Array, half_axes: Array, **look: object) -> Ellipse:
    return Ellipse((centre[0], centre[1]), 2 * half_axes[0], 2 * half_axes[1], zorder=4, **look)  # type: ignore[arg-type]


def arrow(axes: Axes, start: Array, end: Array, colour: str, width: float, style: Style | None = None) -> None:
    """A line that may be dashed with a head that is not."""
    (x0, y0), (x1, y1) = start, end
    axes.plot([x0, x1], [y0, y1], color=colour, linewidth=width, linestyle=style or "solid", zorder=6)
    tip = f"-|>,head_length={2.5 + 2 * width},head_width={1.2 + width}"
    head = FancyArrowPatch((x0, y0), (x1, y1), arrowstyle=tip, linewidth=0, color=colour, shrinkA=0, shrinkB=0)
    head.set_zorder(7)
    axes.add_patch(head)


def legend_entries() -> list[Line2D | Patch]:
    return [
        Patch(facecolor="#c9dfee", edgecolor=REGION, linewidth=1.6, label="trust region: KL ≤ bound"),
        Line2D([], [], color=GRADIENT, linestyle=DOTTED, linewidth=1.5, label="gradient step, to the border"),
        Line2D([], [], color=MODEL, linestyle=DASHED, marker="x", linewidth=1.5, label="the model's own step, and its optimum"),
        Line2D([], [], color=TAKEN, linewidth=2.8, label="the step arTuRO took"),
        Line2D([], [], color="0.45", linewidth=0.9, marker=".", label="the way here"),
    ]
