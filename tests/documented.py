"""Whether a script that a page names exists, or did at a revision that the page names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def script_exists(script: str, text: str) -> bool:
    """``text`` may name a revision, as in "at revision f216d77"; a script may be gone since then."""
    revisions = re.findall(r"revision `?([0-9a-f]{7,40})\b", text)
    return (ROOT / script).exists() or any(existed(script, revision) for revision in revisions)


def existed(script: str, revision: str) -> bool:
    """True also where the history is not at hand, as in a source distribution."""
    git = ["git", "-C", str(ROOT), "cat-file", "-e"]
    if shutil.which("git") is None or subprocess.run([*git, f"{revision}^{{commit}}"], capture_output=True).returncode:
        return True
    return subprocess.run([*git, f"{revision}:{script}"], capture_output=True).returncode == 0
