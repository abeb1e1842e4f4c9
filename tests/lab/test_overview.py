"""What is seen of many runs while they run."""

from __future__ import annotations

import io

from rich.console import Console

from arturo_lab.pool.cost import kind_of
from arturo_lab.pool.overview import Overview, clock
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
        overview.on_status(RunStatus(CONFIGS[3], "waiting", message="its process was killed by signal 9; trying again"))
        overview.on_status(RunStatus(CONFIGS[4], "failed", message="cannot write [there]"))
        overview.on_status(RunStatus(CONFIGS[5], "diverged", 3.0, 0.1))
        with console.capture() as capture:
            console.print(overview.picture())
    return capture.get(), screen.getvalue()


def test_picture_has_all_runs() -> None:
    picture, _ = seen(terminal=False)
    first, *rows = [line.split() for line in picture.splitlines() if line.strip()]
    assert first[:4] == ["3", "of", "8", "runs"] and first[-4:] == ["elapsed,", "unknown", "time", "left"]
    assert rows[0] == ["digits-mlp"] and rows[1] == ["accuracy", "[%]", "seed", "0", "seed", "5"]
    assert rows[3] == ["SGD", "97.22", "12/25"] and rows[4] == ["arTuRO", "96.11", "·"]
    assert rows[5] == ["digits-cnn"] and rows[8] == ["SGD", "failed", "·"] and rows[9] == ["arTuRO", "diverged", "·"]


def test_low_terminal_shows_what_is_under_way() -> None:
    picture, _ = seen(terminal=False, height=12)
    assert "digits-mlp" in picture and "digits-cnn" not in picture


def test_lines_where_there_is_no_terminal() -> None:
    _, written = seen(terminal=False)
    left = "0:00:00 elapsed, unknown time left"
    assert written.splitlines() == [
        f"digits-mlp, arTuRO, seed 0: finished, test accuracy 96.11% (2 of 8 runs, {left})",
        f"2 of 8 runs, {left}",
        f"digits-mlp, arTuRO, seed 5: its process was killed by signal 9; trying again (2 of 8 runs, {left})",
        f"digits-cnn, SGD, seed 0: failed: cannot write [there] (2 of 8 runs, {left})",
        f"digits-cnn, arTuRO, seed 0: diverged (3 of 8 runs, {left})",
    ]


def test_terminal_gets_the_picture_and_what_went_wrong() -> None:
    _, written = seen(terminal=True)
    assert "killed by signal 9" in written and "cannot write [there]" in written and "test accuracy" not in written
    assert "3 of 8 runs" in written


def test_remaining_time_is_known_from_the_first_epoch_of_the_first_task() -> None:
    """In a log file: at once after that epoch, then once a minute."""
    screen = io.StringIO()
    time = [0.0]
    console = Console(file=screen, force_terminal=False, width=100)
    expected = {kind_of(config): 60.0 if config.optimizer == "sgd" else 120.0 for config in CONFIGS}
    with Overview(CONFIGS, 2, console, expected, now=lambda: time[0]) as overview:
        for epochs in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
            overview.on_status(RunStatus(CONFIGS[0], "training", epochs, 0.5, 30.0 if epochs >= 1 else None))
            time[0] += 25.0
    # Half of the 8 runs take 25 epochs of 60 s (SGD on digits-mlp, once seen, 30 s), the others 25 of 120 s; two at a time.
    sgd_mlp, others = 30.0 * (2 * 25), 60.0 * 2 * 25 + 120.0 * 4 * 25
    lines = [
        f"0 of 8 runs, {clock(seconds)} elapsed, {clock((sgd_mlp - 30.0 * epochs + others) / 2)} left"
        for seconds, epochs in ((25, 1), (100, 3))
    ]
    assert screen.getvalue().splitlines() == lines


def test_runs_that_differ_in_their_settings_are_told_apart() -> None:
    """The rates of a sweep, the trials of a search: each has its line and its row."""
    rates = (0.1, 0.0316)  # the first is SGD's own on this task
    swept = [plan(["digits-mlp"], ["sgd", "adam"], [0], overrides={"sgd": {"lr": lr}}) for lr in rates]
    configs = [swept[0][0], swept[0][1], swept[1][0]]
    screen = io.StringIO()
    with Overview(configs, 1, console := Console(file=screen, force_terminal=False, width=100)) as overview:
        for config in configs:
            overview.on_status(RunStatus(config, "finished", 25.0, 0.9722))
        with console.capture() as capture:
            console.print(overview.picture())
    starts = [line.partition(": ")[0] for line in screen.getvalue().splitlines()]
    assert starts == ["digits-mlp, SGD (lr 0.1), seed 0", "digits-mlp, Adam, seed 0", "digits-mlp, SGD (lr 0.0316), seed 0"]
    rows = [line.split("  ")[0].strip() for line in capture.get().splitlines() if "97.22" in line]
    assert [row.removesuffix(" 97.22").strip() for row in rows] == ["SGD (lr 0.1)", "Adam", "SGD (lr 0.0316)"]

    narrow = Console(file=screen, force_terminal=False, width=24)  # names are broken, numbers are not
    with narrow.capture() as capture:
        narrow.print(overview.picture())
    assert capture.get().count("97.22") == 3 and "0.0316)" in capture.get()

    single = Overview(configs[2:], 1, console)  # what is left of a search that is resumed
    assert single.labels[configs[2]] == "SGD (lr 0.0316)"
