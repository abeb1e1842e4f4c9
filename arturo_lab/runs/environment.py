"""What a result depends on besides its config: versions, machine, revision."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arturo


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions of what computes, the machine, and the revision of our source if it is a git checkout."""
    on = torch.device(device)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "arturo": arturo.__version__,
        "revision": revision(Path(arturo.__file__).parent),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **({"processes": int(os.environ["WORLD_SIZE"])} if "WORLD_SIZE" in os.environ else {}),  # of torchrun
        "device": torch.cuda.get_device_name(on) if on.type == "cuda" else str(on),
    }


def cpu_model() -> str:
    """As the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def revision(folder: Path) -> str | None:
    """The commit checked out in ``folder``, with ``-dirty`` if files differ from it; None outside a git checkout."""
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None
