"""Which kernels do the passes of AdaArturo's step, as ``fused``, ``foreach``, the device and the layout tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from arturo.kernels import native as extension
from arturo.kernels.adaptive import Kernel, native, native_tiles
from arturo.kernels.adaptive.compiled import Compiled
from arturo.kernels.adaptive.eager import Eager
from arturo.kernels.adaptive.foreach import Foreach
from arturo.kernels.adaptive.native import Native
from arturo.kernels.adaptive.native_tiles import NativeTiles
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.kernels.adaptive.tiles import Tiles


def kernels(rows: Sequence[AdaptiveRow]) -> list[Kernel]:
    """All rows, each in one of them."""
    chosen: dict[Callable[[Sequence[AdaptiveRow]], Kernel], list[AdaptiveRow]] = {}
    may_be: dict[tuple[int, bool], bool] = {}  # the same for all rows of a group, but for those on a device
    for row in rows:
        key = id(row.group), row.mean.is_cpu
        if key not in may_be:
            may_be[key] = _may_be_native(row)
        chosen.setdefault((_diagonal if row.grid is None else _turned)(row, may_be[key]), []).append(row)
    return [kernel(some) for kernel, some in chosen.items()]


def _turned(row: AdaptiveRow, may_be_native: bool) -> Callable[[Sequence[AdaptiveRow]], Kernel]:
    return NativeTiles if may_be_native and native_tiles.takes(row) else Tiles


def _diagonal(row: AdaptiveRow, may_be_native: bool) -> Callable[[Sequence[AdaptiveRow]], Kernel]:
    """The C++ passes where they can be had, generated code if told so, ``_foreach`` on accelerators, else the loop."""
    if may_be_native and native.takes(row):
        return Native
    row.layout.size[0] = -1.0  # other kernels do not follow it
    if may_be_native:
        return Eager
    group = row.group
    if row.state["M"].dtype != row.mean.dtype:
        return Eager  # the hash of a rounded state has no other form; the model may also have been cast to float64
    if group["fused"] and not torch.compiler.is_compiling():
        return Compiled
    chosen = group["foreach"]
    if chosen is None:
        chosen = group["fused"] is None and row.mean.device.type not in ("cpu", "meta")
    return Foreach if chosen else Eager


def _may_be_native(row: AdaptiveRow) -> bool:
    group = row.group
    if group["foreach"] is not None or group["fused"] is False or group["capturable"] or not row.mean.is_cpu:
        return False
    if extension.available():
        return True
    if not group["fused"]:
        extension.say_once_that_it_is_missing()
    return False
