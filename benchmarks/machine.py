"""What every benchmark says of the machine, of its command and of its spread."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch


def machine() -> dict[str, Any]:
    """What the numbers depend on, and nothing that names the machine."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": load(),
    }


def load() -> list[float] | None:
    """Average number of running processes over 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None


def command() -> str:
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def machine_line(found: dict[str, Any]) -> str:
    """The machine in one sentence."""
    return (
        f"{found['cpu']}, {plural(found['cores'], 'core')}, {plural(found['threads'], 'thread')}, torch {found['torch']}, "
        f"{found['system']}; "
        f"load average {found['load_before'][0] if found['load_before'] else '?'} before and "
        f"{found['load_after'][0] if found['load_after'] else '?'} after"
    )


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [float(x) for x in np.percentile(values, (25, 50, 75))]
