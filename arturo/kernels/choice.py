"""Which kernel runs the passes of a parameter group: depends on ``fused``, ``foreach``, the device and the surrogate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from arturo.kernels import DeviceSweep, Sweep, native
from arturo.kernels.averaged import AveragedDeviceSweep, AveragedSweep
from arturo.kernels.batch import Constants, Row
from arturo.kernels.compiled import CompiledSweep
from arturo.kernels.eager import EagerSweep
from arturo.kernels.foreach import ForeachSweep
from arturo.kernels.native import NativeSweep


def host_sweep(group: Mapping[str, Any], rows: Sequence[Row], k: Constants) -> Sweep:
    """The C++ passes if they were built, else the loop, unless an option says otherwise; after the averages, if any."""
    sweep = _host_kernel(group)(rows, k)
    return AveragedSweep(rows, k, sweep) if rows[0].surrogate.keeps_averages else sweep


def device_sweep(group: Mapping[str, Any], rows: Sequence[Row], k: Constants) -> DeviceSweep:
    """Generated code with ``fused=True``, ``_foreach`` on accelerators, where launches are costly, else the loop."""
    sweep: DeviceSweep = _device_kernel(group, rows)(rows, k)
    return AveragedDeviceSweep(rows, k, sweep) if rows[0].surrogate.keeps_averages else sweep


def _host_kernel(group: Mapping[str, Any]) -> type[NativeSweep] | type[CompiledSweep] | type[EagerSweep] | type[ForeachSweep]:
    if group["foreach"] is not None or group["fused"] is False:
        return ForeachSweep if group["foreach"] else EagerSweep
    if native.available():
        return NativeSweep
    if group["fused"]:
        return CompiledSweep
    native.say_once_that_it_is_missing()
    return EagerSweep


def _device_kernel(
    group: Mapping[str, Any], rows: Sequence[Row]
) -> type[CompiledSweep] | type[EagerSweep] | type[ForeachSweep]:
    if torch.compiler.is_compiling():
        return ForeachSweep if group["foreach"] else EagerSweep
    if group["fused"]:
        return CompiledSweep
    foreach = group["foreach"]
    if foreach is None:
        foreach = all(row.param.device.type != "cpu" for row in rows)
    return ForeachSweep if foreach else EagerSweep
