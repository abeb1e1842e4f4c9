"""What is seen of many runs while they run."""

from __future__ import annotations

import io

from rich.console import Console

from arturo_lab.pool.overview import Overview
from arturo_lab.pool.status import RunStatus
from arturo_lab.runs.plan import plan

CONFIGS = plan(["digits-mlp", "digits-cnn"], ["sgd", "arturo"], [0, 5])


def seen(terminal: bool, height: int = 50) -> tuple[str, str]:
    """The picture after some status, and all that was written."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100, height=height)
    with Overview(CONFIGS, 2, console) as overview:
        overview.on_status(RunStatus(CONFIGS[0], "finished", 25.0, 0.9722, 2.0, reused=True))
        overview.on_status(RunStatus(CONFIGS[1], "finished", 25.0, 0.9611, 4.0))
        overview.on_status(RunStatus(CONFIGS[2], "training", 12.4, 0.93, 2.0))
        overview.on_status(RunStatus(CONFIGS[3], "waiting", message="its process was killed by signal 9; going on"))
        overview.on_status(RunStatus(CONFIGS[4], "failed", message="cannot write [there]"))
        overview.on_status(RunStatus(CONFIGS[5], "diverged", 3.0, 0.1))
        with console.capture() as capture:
            console.print(overview.picture())
    return capture.get(), screen.getvalue()


def test_picture_has_all_runs() -> None:
    picture, _ = seen(terminal=False)
    first, *rows = [line.split() for line in picture.splitlines() if line.strip()]
    assert first[:4] == ["3", "of", "8", "runs"] and first[-4:] == ["gone,", "some", "time", "left"]
    assert rows[0] == ["digits-mlp"] and rows[1] == ["accuracy", "[%]", "seed", "0", "seed", "5"]
    assert rows[3] == ["SGD", "97.22", "12/25"] and rows[4] == ["arTuRO", "96.11", "·"]
    assert rows[5] == ["digits-cnn"] and rows[8] == ["SGD", "failed", "·"] and rows[9] == ["arTuRO", "diverged", "·"]


def test_low_terminal_shows_what_is_under_way() -> None:
    picture, _ = seen(terminal=False, height=12)
    assert "digits-mlp" in picture and "digits-cnn" not in picture


def test_lines_where_there_is_no_terminal() -> None:
    _, written = seen(terminal=False)
    assert written.splitlines() == [
        "digits-mlp, arTuRO, seed 0: finished, test accuracy 96.11%",
        "digits-mlp, arTuRO, seed 5: its process was killed by signal 9; going on",
        "digits-cnn, SGD, seed 0: failed: cannot write [there]",
        "digits-cnn, arTuRO, seed 0: diverged",
    ]


def test_terminal_gets_the_picture_and_what_went_wrong() -> None:
    _, written = seen(terminal=True)
    assert "killed by signal 9" in written and "cannot write [there]" in written and "test accuracy" not in written
    assert "3 of 8 runs" in written
