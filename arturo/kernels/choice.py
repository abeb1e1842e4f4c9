"""Which kernel does the passes of a parameter group, as ``fused``, ``foreach``, the device and the surrogate tell."""

from __future__ import annotations

import torch

from arturo.kernels import Kernel, compiled, eager, foreach, native
from arturo.kernels.averaged import Averaged
from arturo.step import Slot


def host_kernel(slot: Slot) -> Kernel:
    """What does the passes: a kernel, behind the averages of a surrogate that keeps some."""
    kernel = _host_passes(slot)
    return kernel if slot.group["surrogate"] == "kalman" else Averaged(kernel, slot)


def device_kernel(slot: Slot) -> Kernel:
    """The same on a device."""
    kernel = _device_passes(slot)
    return kernel if slot.group["surrogate"] == "kalman" else Averaged(kernel, slot)


def _host_passes(slot: Slot) -> Kernel:
    """The C++ passes where they were built, else the loop; unless told."""
    group = slot.group
    if group["foreach"] is not None or group["fused"] is False:
        return foreach if group["foreach"] else eager
    if native.available():
        return native
    if group["fused"]:
        return compiled
    native.say_once_that_it_is_missing()
    return eager


def _device_passes(slot: Slot) -> Kernel:
    """Generated code if told so, ``_foreach`` on accelerators, where launches count, the loop elsewhere and in a graph."""
    if torch.compiler.is_compiling():
        return foreach if slot.group["foreach"] else eager
    if slot.group["fused"]:
        return compiled
    chosen = slot.group["foreach"]
    if chosen is None:
        chosen = all(p.device.type != "cpu" for p in slot.param)
    return foreach if chosen else eager
