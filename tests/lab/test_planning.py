"""Plan before work: what runs will cost, and who is asked before they start."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arturo_lab import cli
from arturo_lab.commands import many
from arturo_lab.commands.many import RunSet, planned
from arturo_lab.commands.options import PoolSize
from arturo_lab.commands.planning import Plan, PlannedRuns, Planning
from arturo_lab.data import loading
from arturo_lab.pool import cost
from arturo_lab.pool.cost import BATCHES, Cost, costs_of, kind_of, measured
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import plan
from arturo_lab.runs.run import open_run
from arturo_lab.training.train import train

DIGITS = loading.load("digits")
MINUTE = Cost(epoch_seconds=60.0, test_seconds=1.0, checkpoint_bytes=1e6, epoch_bytes=1e3)


@pytest.mark.parametrize("options", [{}, {"subset": 96, "fold": "1/3"}, {"batch_size": 1437}], ids=str)
def test_measured_on_a_few_batches(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    real = cost.train

    def counting(config: RunConfig, data: Any, *, on_step: Any, **rest: Any) -> Any:
        return real(config, data, on_step=lambda metrics: (steps.append(metrics.step), on_step(metrics)), **rest)

    monkeypatch.setattr(cost, "train", counting)
    monkeypatch.setattr(cost.tempfile, "tempdir", str(tmp_path))
    config = RunConfig.for_task("digits-mlp", "adam", epochs=4, **options)
    found = measured(config, DIGITS)
    assert steps == list(range(1, BATCHES + 1)) and list(tmp_path.iterdir()) == []
    assert 0 < found.test_seconds < found.epoch_seconds
    with open_run(tmp_path, config) as folder:
        train(config, DIGITS, run=folder)
    real_bytes = sum((folder.path / name).stat().st_size for name in ("checkpoint.pt", "metrics.jsonl", "steps.jsonl"))
    assert found.run_bytes(config) == pytest.approx(real_bytes, rel=0.1)
    assert found.run_seconds(config) == 4 * found.epoch_seconds


def test_recorded_epochs_are_believed_and_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "measured", lambda *rest: pytest.fail("there was no need to measure"))
    first, second = plan(["digits-mlp"], ["sgd"], [0, 1], 2, subset=96)
    with open_run(tmp_path, first) as folder:
        history = train(first, DIGITS, run=folder)
    found = costs_of([second, first], tmp_path, {"digits": DIGITS})
    seconds = sum(metrics.seconds + metrics.seconds_test for metrics in history) / 2
    assert found[kind_of(second)].epoch_seconds == pytest.approx(seconds)


def test_what_cannot_be_trained_is_not_measured_and_the_rest_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failing(config: RunConfig, *rest: Any) -> Cost:
        if config.optimizer == "sgd":
            raise RuntimeError("no")
        return MINUTE

    monkeypatch.setattr(cost, "measured", failing)
    configs = plan(["digits-mlp"], ["sgd", "adam"], [0])
    assert costs_of(configs, tmp_path, {"digits": DIGITS}) == {kind_of(configs[1]): MINUTE}
    assert costs_of(configs, tmp_path, {}) == {}


def test_after_a_minute_one_optimizer_stands_for_its_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cost, "MEASURING_SECONDS", -1.0)
    monkeypatch.setattr(cost, "measured", lambda config, *rest: asked.append(kind_of(config)[:2]) or MINUTE)
    configs = plan(["digits-mlp", "digits-cnn"], ["sgd", "adam"], [0])
    assert set(costs_of(configs, tmp_path, {"digits": DIGITS}).values()) == {MINUTE}
    assert asked == [("digits-mlp", "sgd"), ("digits-cnn", "sgd")]


def test_what_is_left_is_counted_and_not_what_is_over(tmp_path: Path) -> None:
    configs = plan(["digits-mlp"], ["sgd", "adam"], [0, 1], 3, subset=96)
    with open_run(tmp_path, configs[0]) as folder:
        train(configs[0], DIGITS, run=folder)
    with open_run(tmp_path, configs[2]) as folder, pytest.raises(KeyboardInterrupt):  # the same optimizer, seed 1
        train(configs[2], DIGITS, run=folder, stop=lambda: folder.epochs_done == 1)
    runs = RunSet(configs, tmp_path, PoolSize(jobs=2))
    sgd, adam = planned(configs, runs.missing(), 2)
    assert (sgd.runs, sgd.epochs, sgd.kept) == (1, 2.0, 2) and (adam.runs, adam.epochs, adam.kept) == (2, 6.0, 2)
    found = Plan([sgd, adam], dict.fromkeys(map(kind_of, configs), MINUTE), tmp_path)
    assert found.seconds == 120.0 + 360.0 / 2 and found.bytes == 4 * (1e6 + 3 * 1e3)
    assert found.summary() == "3 runs to train, 2 at a time: about 5 min 0 s, 4.0 MB on disk"
    unknown = Plan([sgd, adam], {kind_of(configs[0]): MINUTE}, tmp_path)
    assert unknown.seconds is None and "time unknown until the first epochs" in unknown.summary()


@pytest.mark.parametrize(
    ("epochs", "terminal", "yes", "answer", "approved", "asked"),
    [
        (9, True, False, "", True, False),
        (11, True, False, "y", True, True),
        (11, True, False, "", False, True),
        (11, True, False, "n", False, True),
        (11, True, True, "n", True, False),
        (11, False, False, "n", True, False),
    ],
)
def test_asked_before_more_than_ten_minutes(
    epochs: int, terminal: bool, yes: bool, answer: str, approved: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr(sys, "stdin", Keyboard(answer + "\n"))
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    config = RunConfig.for_task("digits-mlp", "sgd", epochs=epochs)
    work = Plan([PlannedRuns(config, 1, epochs, 1)], {kind_of(config): MINUTE}, Path())
    assert work.approved(Planning(yes=yes), console) is approved
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("Start? (--yes skips this question) [y/N]" in shown) is asked and f"about {epochs} min" in shown
    assert work.approved(Planning(plan=True, yes=yes), console) is False


@pytest.mark.parametrize(
    "command",
    [
        "compare digits-mlp digits-cnn --optimizers sgd arturo --seeds 2",
        "tune digits-mlp --optimizer sgd --protocol fair --trials 2 --folds 2 --studies 1",
        "calibrate digits-cnn --methods point ensemble --epochs 2",
    ],
)
def test_plan_makes_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command.split(), "--plan"]) == 0
    out = capsys.readouterr().out
    runs = {"compare": 8, "tune": 2 * 2 + 3, "calibrate": 5}[command.split()[0]]
    assert out.startswith("Plan") and f"{runs} runs to train" in out and "on disk" in out
    assert list(tmp_path.iterdir()) == []


def test_the_full_scale_says_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten seeds of five optimizers on six tasks, computed: nothing in the help or the scale says weeks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(many, "provide", lambda *rest: DIGITS)
    monkeypatch.setattr(cost, "measured", lambda *rest: MINUTE)
    assert cli.main(["reproduce", "table1", "--scale", "full", "--plan"]) == 0
    out = capsys.readouterr().out
    days = round(10 * 5 * (2 * 120 + 4 * 160) / 60 / 24)
    assert f"300 runs to train: about {days} days" in out
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--help"])
    assert "weeks" not in capsys.readouterr().out


def test_the_same_task_at_two_lengths_costs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``reproduce all`` trains some tasks whole and, to take their time, on a few batches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(many, "provide", lambda *rest: DIGITS)
    asked: list[int | None] = []

    def costing(config: RunConfig, *rest: Any) -> Cost:
        asked.append(config.share.subset)
        return MINUTE if config.share.subset == 10_000 else Cost(1.0, 0.1, 1.0, 1.0)

    monkeypatch.setattr(cost, "measured", costing)
    assert cli.main(["reproduce", "all", "--tasks", "fmnist-cnn", "--optimizers", "sgd", "--seeds", "2", "--plan"]) == 0
    assert len(asked) == 2
    assert "4 runs to train: about 16 min" in capsys.readouterr().out  # 2 of 8 minutes, and 2 of 3 seconds
