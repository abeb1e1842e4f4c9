"""``arturo league``: the same chances for all, resumed from its rows."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_rgba

from arturo_lab import cli
from arturo_lab.commands.league import Options
from arturo_lab.commands.options import DataSource
from arturo_lab.data import loading
from arturo_lab.errors import ConfigError
from arturo_lab.league import work as working
from arturo_lab.league.ablation import ABLATIONS
from arturo_lab.league.document import ablation_parts, decided, document, judged, losses, sweep_parts, write
from arturo_lab.league.field import ENTRANTS, SECONDS, TRIAL_SEED, League
from arturo_lab.league.figures import BETTER, WORSE, headline_figure
from arturo_lab.league.results import headline, mean_ranks, outcome, ratios, reached, step_costs, targets
from arturo_lab.league.rows import Rows, busy, clocked, looks, stale
from arturo_lab.league.stages import SLOTS, ablation, at_rate, sweep, trial, trials, tuned, untouched, winner
from arturo_lab.league.tables import differing, headline_table, looked, losses_table, results_table, times_table
from arturo_lab.league.valley import REFERENCE_RATES, SWEPT, rates_around, swept_settings
from arturo_lab.league.work import missing, progress, waves, why_stale
from arturo_lab.optimizers.catalog import ADAPTIVE, OPTIMIZERS
from arturo_lab.report.table import Table
from arturo_lab.runs.compact import NAME
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.lock import locked
from arturo_lab.runs.records import Record, read_run
from arturo_lab.runs.run import open_run
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.train import train
from arturo_lab.tuning.spaces import space

TASK = """
import torch
from torch import nn
from arturo_lab.data.examples import Examples
from arturo_lab.data.inputs import AsStored
from arturo_lab.tasks.metrics import LOSS, squared_error
from arturo_lab.tasks.schedules import cosine
from arturo_lab.tasks.task import Task

def line():
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    return Examples("line", x[:60], y[:60], x[60:], y[60:])

TASK = Task("A line", data=line, model=lambda: nn.Linear(3, 1), epochs=3, batch_size=10, loss=squared_error,
            metrics=(LOSS,), inputs=AsStored(), schedule=cosine, threads=1)
"""
THREE = ("sgd", "adamw-warmup", "adaarturo")


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("line.py").write_text(TASK)
    return "line.py:TASK"


def words(line: str, *more: str) -> list[str]:
    chosen = ["--tasks", line, "--optimizers", *THREE, "--trials", "2", "--seeds", "1", "--jobs", "1"]
    return ["league", *chosen, "--out", "kept", "--work", "work", *more]


def keep(
    rows: Rows, config: RunConfig, value: float, status: str = "finished", load: float = 1.0, seconds: float = 1.0
) -> None:
    """A row as if it had been trained: the metric goes to ``value`` in a straight line."""
    metric = TASKS[config.task].metric
    row = {metric.key: value if status == "finished" else None, "train_loss": 1.0}
    curve = tuple({**row, "wall_seconds": (i + 1) * seconds} for i in range(config.epochs))
    result = {"status": status, "metric": {**metric.described(), "value": value}, metric.key: value, "seconds": seconds}
    environment = {"torch": "2", "made_with": {"laboratory": "x"}}
    rows.add(Record(rows.path.parent / config.folder, config.to_json(), environment, curve, result, status), config, load, 1)


def test_another_league_has_its_own_checkpoints() -> None:
    def folder(**options: Path) -> Path:
        return Options(data=DataSource(), **options).folder

    assert folder() == Path("runs/league") and folder(out=Path("b")) == Path("b/work")
    assert folder(out=Path("b"), work=Path("c")) == Path("c")


def test_everybody_has_the_same_trials() -> None:
    league = League(trials=5)
    for name in ENTRANTS:
        chosen, settings = space("fair", name), league.trial_settings(name)
        assert len(settings) == 5 and settings[0] == {}
        for point, values in zip(league.points(), settings[1:], strict=True):
            assert len(point) == len(chosen.dimensions) == 3 and all(0 <= x < 1 for x in point)
            assert chosen.dimensions[0].share(values["lr"]) == pytest.approx(point[0], abs=1e-3)
    assert League(trials=3).points() == league.points()[:2]


def test_untouched_is_what_the_catalog_says_and_nothing_tuned() -> None:
    for name in ENTRANTS:
        assert not set(OPTIMIZERS[name].tuned) & set(SECONDS)
    slots = list(untouched(League(("digits-mlp", "diabetes-mlp"), seeds=2), Rows(Path("none"))))
    assert [(s.number, s.task) for s in slots[:: len(ENTRANTS)]] == [
        (0, "digits-mlp"), (0, "diabetes-mlp"), (1, "digits-mlp"), (1, "diabetes-mlp")
    ]  # fmt: skip
    assert {s.config.share.validation for s in slots if s.config} == {"1/6"}


def test_trials_never_see_the_test_set() -> None:
    league = League(("digits-mlp",), trials=2)
    for slot in trials(league, Rows(Path("none"))):
        assert slot.config and slot.config.share.fold == "1/6" and slot.config.share.validation is None
        assert slot.config.epochs == 8 and slot.config.seed == TRIAL_SEED not in range(league.seeds)


def test_thirteen_tasks_of_unlike_kind() -> None:
    kinds = {task: (TASKS[task].data, TASKS[task].model) for task in SECONDS}
    assert len(SECONDS) == 13 and len(set(kinds.values())) == 12
    (again,) = [task for task in SECONDS if list(kinds.values()).count(kinds[task]) > 1 and task != "digits-mlp"]
    assert again == "digits-mlp-batch-1" and TASKS[again].batch_size == 1 < TASKS["digits-mlp"].batch_size


def test_trains_resumes_and_reports(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(words(line)) == 0
    rows = Rows.read(Path("kept") / NAME)
    league = League((line,), THREE, seeds=1, trials=2)
    states = {state.stage: state for state in progress(league, rows)}
    assert {name: (s.done, s.missing) for name, s in states.items() if s.runs} == {
        "untouched": (3, 0), "trials": (6, 0), "tuned": (3, 0), "rates": (5, 0), "best-rate": (1, 0)
    }  # fmt: skip
    assert not list(Path("work").rglob("checkpoint.pt"))
    record = next(iter(rows.records.values()))
    assert {"rules", "laboratory", "data", "task"} <= set(record.result["made_with"]) and record.result["jobs"] == 1
    assert record.result["validation_loss"] == pytest.approx(record.rows[-1]["test_loss"])
    assert record.result["test_loss"] != record.result["validation_loss"]
    monkeypatch.setattr(working, "train_many", lambda *_, **__: 1 / 0)
    assert cli.main(words(line)) == 0  # nothing is left to train
    capsys.readouterr()
    assert cli.main(words(line, "--plan")) == 0
    assert "18" in capsys.readouterr().out


def test_only_and_stage_restrict_what_is_trained(line: str) -> None:
    assert cli.main(words(line, "--only", "adaarturo", "--stage", "untouched")) == 0
    assert [record.config["optimizer"] for record in Rows.read(Path("kept") / NAME).records.values()] == ["adaarturo"]
    assert cli.main(words(line, "--stage", "tuned")) == 0  # waits for trials: nothing to do
    assert cli.main(words(line, "--stage", "finals")) == cli.main(words(line, "--only", "adam")) == 2
    assert cli.main(words(line, "--tasks", line, "diabetes-mlp", "--only", line, "sgd", "--stage", "untouched")) == 0
    kept = [(record.config["task"], record.config["optimizer"]) for record in Rows.read(Path("kept") / NAME).records.values()]
    assert kept == [(line, "adaarturo"), (line, "sgd")]  # not diabetes-mlp, and not AdamW
    assert "diabetes-mlp" in (Path("kept") / "league.md").read_text()  # the tables keep it


def test_a_run_that_ended_without_its_row_is_kept(line: str) -> None:
    league = League((line,), THREE, seeds=1, trials=2)
    config = league.config(line, "sgd", 0, test=True)
    with open_run(Path("work"), config) as run:
        train(config, loading.load(TASKS[line].data), run=run)
    loss = read_run(Path("work") / config.folder).result["test_loss"]
    assert cli.main(words(line, "--only", "sgd", "--stage", "untouched")) == 0
    kept = Rows.read(Path("kept") / NAME).fresh(config)
    assert kept is not None and kept.result["test_loss"] == loss and not (Path("work") / config.folder).exists()


def test_another_method_makes_our_rows_stale_and_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, league = Rows(tmp_path / NAME), League(("digits-mlp",), THREE, seeds=1, trials=2)
    for name in THREE:
        keep(rows, league.config("digits-mlp", name, 0, test=True), 0.9)
    monkeypatch.setitem(OPTIMIZERS, "adaarturo", replace(OPTIMIZERS["adaarturo"], method=99))
    (state,) = progress(league, rows, ["untouched"])
    assert (state.done, state.stale, state.missing) == (2, 1, 1)
    assert why_stale(league, rows) == {f"AdaArturo: method was {ADAPTIVE} and is 99": 1}
    (again,) = missing(league, rows, "untouched", 0, ())
    assert again.optimizer == "adaarturo" and rows.fresh(again) is None
    assert stale(rows.records["digits-mlp", again.name], again) == [f"method was {ADAPTIVE} and is 99"]
    keep(rows, again, 0.95)
    assert rows.fresh(again) is not None and len(Rows.read(rows.path).records) == 3


def test_rows_of_two_processes_are_merged(tmp_path: Path) -> None:
    one, other = Rows.read(tmp_path / NAME), Rows.read(tmp_path / NAME)
    league = League(("digits-mlp",), THREE)
    keep(one, league.config("digits-mlp", "sgd", 0, test=True), 0.9)
    keep(other, league.config("digits-mlp", "sgd", 1, test=True), 0.9)
    assert len(other.records) == len(Rows.read(tmp_path / NAME).records) == 2


def test_damaged_rows_are_refused_by_name(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows(Path("kept") / NAME)
    keep(rows, League((line,), THREE).config(line, "sgd", 0, test=True), 0.9)
    before = rows.path.read_text()
    rows.path.write_text(before + '{"cut')
    assert cli.main(words(line)) == 2
    lines = len(before.splitlines()) + 1
    assert f"runs.jsonl: line {lines} is corrupt" in capsys.readouterr().err and rows.path.read_text() == before + '{"cut'


def test_the_winner_is_the_best_on_validation_and_a_diverged_trial_the_worst(tmp_path: Path) -> None:
    rows, league = Rows(tmp_path / NAME), League(("diabetes-mlp",), THREE, seeds=2, trials=3)
    assert all(slot.config is None for slot in tuned(league, rows))
    for number, value in enumerate((0.5, 0.4, 0.45)):
        keep(rows, trial(league, "diabetes-mlp", "sgd", number), value, "diverged" if number == 1 else "finished")
    assert winner(league, rows, "diabetes-mlp", "sgd") == (2, league.trial_settings("sgd")[2])
    configs = [slot.config for slot in tuned(league, rows)]
    assert [c.optimizer for c in configs if c] == ["sgd", "sgd"] and [c.seed for c in configs if c] == [0, 1]
    assert all(c.share.validation == "1/6" and c.epochs == 12 for c in configs if c)


def test_a_winner_that_was_untouched_is_trained_once(tmp_path: Path) -> None:
    rows, league = Rows(tmp_path / NAME), League(("diabetes-mlp",), ("sgd",), seeds=1, trials=2)
    for number in range(2):
        keep(rows, trial(league, "diabetes-mlp", "sgd", number), 0.4 + number)
    (slot,) = tuned(league, rows)
    (first,) = untouched(league, rows)
    assert slot.config == first.config


def test_an_optimizer_without_a_search_space_is_told_where_to_go() -> None:
    with pytest.raises(ConfigError, match=r"optimizers: adahessian-hessian needs a fair search space .* arturo compare"):
        League(("digits-mlp",), ("sgd", "adahessian-hessian"))


def test_seeds_are_outermost() -> None:
    order = list(waves(League(seeds=2), ("untouched", "trials", "tuned", "sweep")))
    assert order == [("untouched", 0), ("trials", None), ("tuned", 0), ("untouched", 1), ("tuned", 1), ("sweep", None)]


def test_a_busy_machine_is_told(tmp_path: Path) -> None:
    rows, config = Rows(tmp_path / NAME), League(("digits-mlp",), THREE).config("digits-mlp", "sgd", 0, test=True)
    keep(rows, config, 0.9, load=1.2)
    assert not busy(rows.records["digits-mlp", config.name])
    keep(rows, config, 0.9, load=2.0)
    assert busy(rows.records["digits-mlp", config.name])


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="the system does not say")
def test_the_load_is_recorded(line: str) -> None:
    assert cli.main(words(line, "--only", "sgd", "--stage", "untouched")) == 0
    (record,) = Rows.read(Path("kept") / NAME).records.values()
    assert record.result["load"] > 0


# --- the report


@pytest.fixture
def played(tmp_path: Path) -> tuple[League, Rows]:
    """Two tasks, three optimizers; AdaArturo first on one, second on the other; SGD diverges once; one seed is missing."""
    league, rows = League(("digits-mlp", "diabetes-mlp"), THREE, seeds=2, trials=1), Rows(tmp_path / "kept" / NAME)
    best = {"digits-mlp": {"sgd": 0.90, "adamw-warmup": 0.95, "adaarturo": 0.97},
            "diabetes-mlp": {"sgd": 0.60, "adamw-warmup": 0.50, "adaarturo": 0.55}}  # fmt: skip
    for task, values in best.items():
        for name, value in values.items():
            keep(rows, trial(league, task, name, 0), value)
            for seed in range(2):
                lost = (task, name, seed) == ("diabetes-mlp", "sgd", 1)
                if (task, name, seed) != ("digits-mlp", "sgd", 1):
                    config = league.config(task, name, seed, test=True)
                    keep(rows, config, value, "diverged" if lost else "finished", load=5.0 if seed else 1.0)
    search_worse_rates(league, rows, *best)
    return league, rows


def search_worse_rates(league: League, rows: Rows, *tasks: str) -> None:
    """AdamW's other search, over lr at full length, is over, and its best diverges with every seed."""
    for task in tasks:
        worse, worst = (0.1, 0.0) if TASKS[task].metric.better == "higher" else (1000.0, 1001.0)
        for number in range(len(REFERENCE_RATES)):  # the first is the lr of the untouched runs
            keep(rows, at_rate(league, task, number), worse if number == 1 else worst)
        for slot in SLOTS["best-rate"](league, rows):
            if slot.task == task and slot.config is not None:
                keep(rows, slot.config, worse, "diverged")


def texts(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [" ".join(filter(None, (cell.text, cell.detail))) for cell in row[1:]] for row in table.rows}


def test_tables_by_hand(played: tuple[League, Rows]) -> None:
    league, rows = played
    assert targets(league, rows) == pytest.approx({"digits-mlp": 0.95, "diabetes-mlp": 0.50})
    of = outcome(league, rows, "untouched")
    results = texts(results_table(of))
    assert results["SGD"] == ["90.00 partial: 1 of 2 seeds", "diverged 1 of 2 diverged; the others 0.6000"]
    assert results["AdaArturo"] == ["97.00 ± 0.00", "0.5500 ± 0.0000"] and of.missing == 1
    assert [row[0].text for row in results_table(of).rows] == ["AdamW (warm-up)", "AdaArturo", "SGD"]
    losses = texts(losses_table(of))
    assert losses["digits-mlp"][:3] == ["97.00 ± 0.00", "1 of 3", "AdaArturo"]
    assert losses["diabetes-mlp"][:4] == ["0.5500 ± 0.0000", "2 of 3", "AdamW (warm-up)", "0.5000 ± 0.0000"]


def test_untouched_against_tuned_by_hand(played: tuple[League, Rows]) -> None:
    """Of AdamW the trial that won, of AdaArturo the defaults, seed by seed; bold where one is better with every seed."""
    of = headline(*played)
    assert of is not None and of.missing == 0
    table = headline_table(of, {"digits-mlp": 2.0})
    assert [column.name for column in table.columns[1:3]] == ["AdamW (warm-up), best", "AdaArturo, untouched"]
    steps = of.steps["digits-mlp"] * 25
    assert texts(table) == {
        "digits-mlp": [
            "95.00 ± 0.00",
            "97.00 ± 0.00",
            "+2.00 ± 0.00",
            f"{of.steps['digits-mlp']} 4%",
            "8%",  # a step costs twice that of AdamW
            f"{of.steps['digits-mlp']} 4%",
            "accuracy [%]",
            f"{steps:,}",
            "untouched",
        ],
        "diabetes-mlp": [
            "0.5000 ± 0.0000",
            "0.5500 ± 0.0000",
            "−0.0500 ± 0.0000",
            "not reached",
            "-",  # nobody measured its cost
            "50 8%",
            "loss [variance of the targets]",
            "600",
            "untouched",
        ],
    }
    assert [[row[1].best, row[2].best] for row in table.rows] == [[False, True], [True, False]]
    assert decided(of) == (
        "Complete: 2 of 2 tasks. AdaArturo is better with every seed on 1 (digits-mlp); worse with every seed on 1 "
        "(diabetes-mlp). Over the tasks: p = 1.00 by a sign test."
    )
    assert any("constants were chosen on their validation folds" in note for note in table.notes)
    assert headline(replace(played[0], optimizers=("sgd", "adaarturo")), played[1]) is None


def test_at_a_glance_by_hand(played: tuple[League, Rows]) -> None:
    """Bars as long as the table's steps, dots where error and loss are in parts of AdamW's, a loss in another colour."""
    of = headline(*played)
    assert of is not None
    digits, diabetes = of.sections
    assert ratios(digits) == pytest.approx([0.6, 0.6]) and ratios(diabetes) == pytest.approx([1.1, 1.1])
    there, never = reached(digits, "adaarturo"), reached(diabetes, "adaarturo")
    assert there is not None and (there.epochs, there.seeds, there.of) == (1, 2, 2) and reached(None, "adaarturo") is None
    assert never is not None and (never.epochs, never.seeds) == (math.inf, 0)
    figure = headline_figure(of)
    assert figure is not None
    left, right = figure.axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([4.0, 100.0])
    assert [text.get_text() for text in left.texts] == ["4%", "never"]
    assert [bar.get_edgecolor() for bar in left.patches] == [to_rgba(BETTER), to_rgba(WORSE)]
    dots = [line for line in right.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [pytest.approx([0.6, 0.6]), pytest.approx([1.1, 1.1])]
    assert [line.get_color() for line in dots] == [BETTER, WORSE]


def test_at_a_glance_needs_runs_of_both(tmp_path: Path) -> None:
    league, rows = League(("digits-mlp",), THREE, seeds=2, trials=1), Rows(tmp_path / NAME)
    keep(rows, league.config("digits-mlp", "adaarturo", 0, test=True), 0.9)
    of = headline(league, rows)
    assert of is not None and headline_figure(of) is None and ratios(of.sections[0]) == []


def test_adamw_at_its_best_is_the_better_of_two_searches(tmp_path: Path) -> None:
    """The best lr at full length or the best trial, whichever is better on validation data, once it has all seeds."""
    league, rows = League(("digits-mlp", "diabetes-mlp"), THREE, seeds=2, trials=2), Rows(tmp_path / NAME)
    second = league.trial_settings("adamw-warmup")[1]

    def chosen() -> dict[str, str]:
        of = headline(league, rows)
        assert of is not None
        return {task: row[-1] for task, row in texts(headline_table(of, {})).items()}

    def whole(task: str, settings: dict, *values: float) -> None:
        for seed, value in enumerate(values):
            keep(rows, league.config(task, "adamw-warmup", seed, settings, test=True), value)

    for task, by_lr, by_trial in (("digits-mlp", 0.98, 0.97), ("diabetes-mlp", 0.60, 0.55)):  # accuracy and loss
        for number, value in enumerate((0.5, 0.6) if task == "digits-mlp" else (0.6, 0.5)):  # the second trial wins
            keep(rows, trial(league, task, "adamw-warmup", number), value)
        assert [slot.config for slot in SLOTS["best-rate"](league, rows) if slot.task == task] == [None, None]
        for number, lr in enumerate(REFERENCE_RATES):
            config = at_rate(league, task, number)
            assert config.settings["lr"] == lr and config.share.fold and not config.share.validation  # no test set
            keep(rows, config, 0.9 if lr == 1e-2 and task == "digits-mlp" else 0.5 if lr == 1e-2 else 0.7)
        whole(task, {"lr": 1e-2}, by_lr)
        whole(task, second, by_trial, by_trial)
        assert chosen()[task] == differing(task, "adamw-warmup", second)  # the other lacks a seed
        whole(task, {"lr": 1e-2}, by_lr, by_lr)
    assert chosen() == {"digits-mlp": "lr 0.01", "diabetes-mlp": differing("diabetes-mlp", "adamw-warmup", second)}
    assert not list(SLOTS["rates"](replace(league, optimizers=("sgd",)), rows))


def test_untouched_against_tuned_says_what_is_missing(tmp_path: Path) -> None:
    """AdamW's second trial wins. Tasks without a tuned AdamW, with one seed of two, a diverged run, and no clear order."""
    tasks = ("digits-mlp", "breast-cancer-mlp", "diabetes-mlp", "fmnist-autoencoder", "byte-gru")
    league, rows = League(tasks, THREE, seeds=2, trials=2), Rows(tmp_path / NAME)
    assert document(league, rows, "").tables[0].name == "tasks"  # no rows, no table

    def ours(task: str, *values: float) -> None:
        for seed, value in enumerate(values):
            keep(rows, league.config(task, "adaarturo", seed, test=True), value)

    def adamw(task: str, *values: float | None) -> None:
        for number, loss in enumerate((0.9, 0.8)):  # the second trial wins
            keep(rows, trial(league, task, "adamw-warmup", number), loss)
        keep(rows, league.config(task, "adamw-warmup", 0, test=True), 0.01)  # untouched, and no part of the table
        for seed, value in enumerate(values):
            config = league.config(task, "adamw-warmup", seed, league.trial_settings("adamw-warmup")[1], test=True)
            keep(rows, config, 0.0 if value is None else value, "diverged" if value is None else "finished")

    ours("digits-mlp", 0.97, 0.98)  # AdamW's trials are still to come
    ours("breast-cancer-mlp", 0.2)
    adamw("breast-cancer-mlp", 0.3, 0.3)
    ours("diabetes-mlp", 0.5, 0.6)
    adamw("diabetes-mlp", 0.7, None)
    ours("fmnist-autoencoder", 210.0, 214.0)
    adamw("fmnist-autoencoder", 212.0, 213.0)
    unsearched = headline(league, rows)
    assert unsearched is not None and unsearched.searching == set(tasks)
    assert decided(unsearched) == "Complete: 0 of 5 tasks."
    search_worse_rates(league, rows, *tasks[1:4])
    of = headline(league, rows)
    assert of is not None and of.missing == 2 + 1 + 4 and of.searching == {"digits-mlp", "byte-gru"}
    table = headline_table(of, {})
    cells = {task: row[:3] for task, row in texts(table).items()}
    assert cells["digits-mlp"] == ["- missing", "97.50 ± 0.71", "-"]
    assert cells["breast-cancer-mlp"] == ["0.3000 ± 0.0000", "0.2000 partial: 1 of 2 seeds", "+0.1000"]
    assert cells["diabetes-mlp"] == ["diverged 1 of 2 diverged; the others 0.7000", "0.5500 ± 0.0707", "2 won, 0 lost"]
    assert cells["fmnist-autoencoder *"][:2] == ["212.5000 ± 0.7071", "212.0000 ± 2.8284"]
    assert cells["fmnist-autoencoder *"][2].startswith("+0.5000 ± ")
    assert cells["byte-gru *"] == ["- missing", "- missing", "-"]
    assert [task for task, row in zip(tasks, table.rows, strict=True) if any(cell.best for cell in row)] == ["diabetes-mlp"]
    assert "Partial: 7 runs of this table are still to come." in table.notes
    assert "Partial: one of AdamW (warm-up)'s two searches is not over on digits-mlp, byte-gru." in table.notes
    assert decided(of) == (
        "Complete: 2 of 5 tasks. AdaArturo is better with every seed on 1 (diabetes-mlp); neither on 1 (fmnist-autoencoder). "
        "Over the tasks: p = 1.00 by a sign test; over the 1 that had no part in choosing its constants: p = 1.00."
    )


def test_ranks_where_constants_were_chosen_and_elsewhere(tmp_path: Path) -> None:
    tasks, rows = ("digits-mlp", "diabetes-mlp", "fmnist-autoencoder", "digits-mlp-batch-1"), Rows(tmp_path / NAME)
    league = League(tasks, THREE, seeds=1, trials=2)
    values = {"digits-mlp": (0.9, 0.8, 0.7), "diabetes-mlp": (1.0, 3.0, 2.0)}  # SGD, AdamW, AdaArturo
    for task in tasks:
        for name, value in zip(THREE, values.get(task, (3.0, 2.0, 1.0)), strict=True):
            keep(rows, league.config(task, name, 0, test=True), value)
    of = outcome(league, rows, "untouched")
    assert mean_ranks(of, developed=False) == {"SGD": 1.0, "AdamW (warm-up)": 2.5, "AdaArturo": 2.5}
    assert mean_ranks(of, developed=True) == {"AdaArturo": 1.0, "AdamW (warm-up)": 2.0, "SGD": 3.0}
    (sentence,) = judged(of)
    assert "Over the 2 tasks on which AdaArturo's constants were chosen: AdaArturo 1.00, AdamW (warm-up) 2.00" in sentence
    assert "Over the 2 tasks on which they were not: SGD 1.00" in sentence


def test_ranks_are_of_the_seeds_that_all_have(tmp_path: Path) -> None:
    """AdaArturo's second seed is its worst; nobody else has one."""
    tasks, rows = ("digits-mlp", "diabetes-mlp"), Rows(tmp_path / NAME)
    league = League(tasks, THREE, seeds=2, trials=2)
    for task in tasks:
        for name, value in zip(THREE, (3.0, 2.0, 1.0), strict=True):
            keep(rows, league.config(task, name, 0, test=True), 1 - value / 10 if task == "digits-mlp" else value)
        keep(rows, league.config(task, "adaarturo", 1, test=True), 0.1 if task == "digits-mlp" else 9.0)
    of = outcome(league, rows, "untouched")
    assert of.ranking is not None
    assert {standing.label: standing.ranks for standing in of.ranking.standings}["AdaArturo"] == (1.0, 1.0)
    shown = texts(losses_table(of))
    assert shown["digits-mlp"][:3] == ["50.00 ± 56.57", "1 of 3", "AdaArturo"]
    assert shown["diabetes-mlp"][:3] == ["5.0000 ± 5.6569", "1 of 3", "AdaArturo"]
    assert losses(of) == ("On 2 tasks all 3 optimizers have a result; AdaArturo is first on 2.",)


def test_cost_of_a_step_is_read_from_the_benchmark(tmp_path: Path) -> None:
    assert step_costs(tmp_path) == {}
    row = {"contenders": {"ada-kronecker": {"ratio_of_means": 1.25}, "adamw-fused": {"ratio_of_means": 1.0}}}
    (tmp_path / "training_step.json").write_text(json.dumps({"networks": {"byte-gru": row}}))
    assert step_costs(tmp_path) == {"byte-gru": 1.25}


def test_times_to_the_tuned_result(played: tuple[League, Rows]) -> None:
    league, rows = played
    of = outcome(league, rows, "untouched")
    table = texts(times_table(of))
    steps = of.steps["digits-mlp"]
    assert table["AdaArturo"] == [f"{steps} 1.0 s", "not reached"] and table["AdamW (warm-up)"][1] == "50 1.0 s"
    assert table["SGD"][0] == "not reached partial: 1 of 2 seeds"
    assert any("on a machine with other work" in note for note in times_table(of).notes)


def test_document_and_page(played: tuple[League, Rows], tmp_path: Path) -> None:
    league, rows = played
    made = document(league, rows, "arturo league --report")
    text = made.markdown()
    assert made.json()["rows"][0]["reference"] == pytest.approx(0.95) and made.json()["rows"][0]["ours"] == pytest.approx(0.97)
    assert made.parts[1].heading == "AdaArturo untouched against AdamW at its best" and made.parts[1].shown
    assert text.index("## AdaArturo untouched against AdamW at its best") < text.index("## Untouched: where AdaArturo loses")
    assert (
        "On 2 tasks all 3 optimizers have a result; AdaArturo is first on 1. It is behind on diabetes-mlp (rank 2 of 3; "
        in text
    )
    assert text.index("where AdaArturo loses") < text.index("## Ranks") < text.index("## Untouched\n")
    paths = {path.name for path in write(made, tmp_path / "out")}
    assert {
        "league.md",
        "league.json",
        "index.html",
        "ranks.png",
        "profiles-tuned.png",
        "curves-untouched.png",
        "at-a-glance.png",
    } <= paths
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("data:image/png") == len([name for name in paths if name.endswith(".png")])
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "") and "where AdaArturo loses" in page
    assert "AdaArturo untouched against AdamW at its best" in page


def test_nothing_to_report(line: str) -> None:
    assert cli.main(words(line, "--report")) == 2


def test_learning_rates(tmp_path: Path) -> None:
    for lrs in map(rates_around, SWEPT):
        assert len(lrs) == 7 and lrs[6] / lrs[0] == pytest.approx(1e3, rel=0.01)
    assert rates_around("muon")[3] == RunConfig.for_task("digits-mlp", "muon").settings["lr"]
    muon = RunConfig.for_task("digits-mlp", "muon", overrides=swept_settings("muon", 0.02))
    assert muon == RunConfig.for_task("digits-mlp", "muon")
    rows, league = Rows(tmp_path / NAME), League(("fmnist-autoencoder",), ("adamw-warmup", "adaarturo"))
    slots = list(sweep(league, rows))
    assert len(slots) == 14 and all(slot.config and slot.config.share.fold == "1/6" for slot in slots)
    for slot in slots:
        assert slot.config is not None
        far = abs(slot.number - 3) * (2.0 if slot.optimizer == "adamw-warmup" else 1.0)
        keep(rows, slot.config, 200.0 + 2.1 * far, "diverged" if slot.number == 6 else "finished")
    (part,) = sweep_parts(league, rows)
    assert part.table is not None and part.figure is not None
    valley = {record["label"]: record for record in part.table.records()}
    assert valley["AdamW (warm-up)"]["own_decades"] == 0 and valley["AdaArturo"]["own_decades"] == pytest.approx(1, abs=0.01)
    assert valley["AdaArturo"]["diverged"] == 1 and valley["AdaArturo"]["validation_loss"] == 200


def test_ablation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    rows, league = Rows(tmp_path / NAME), League(("fmnist-autoencoder",), ("adaarturo",), seeds=1)
    slots = list(ablation(league, rows))
    assert [slot.optimizer for slot in slots] == list(ABLATIONS) and ablation_parts(league, rows) == []
    keep(rows, league.config("fmnist-autoencoder", "adaarturo", 0, test=True), 200.0)
    for i, slot in enumerate(slots):
        assert slot.config is not None and slot.config.share.fold == "1/6"
        keep(rows, slot.config, 200.0 + i)
    (part,) = ablation_parts(league, rows)
    assert part.table is not None
    table = texts(part.table)
    assert list(table)[:3] == ["as it is", "in plain torch, nothing off", "noise not learned"] and len(table) == 9
    assert table["as it is"] == ["200.0000 0.0000"] and table["noise not learned"] == ["201.0000 −1.0000"]


def test_an_ablation_is_compared_on_shared_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that only one of the two has, an easy one, does not count as a gain."""
    monkeypatch.chdir(Path(__file__).parents[2])
    rows, league = Rows(tmp_path / NAME), League(("fmnist-autoencoder",), ("adaarturo",), seeds=3)
    whole, off = list(ABLATIONS)[:2]
    for slot in ablation(league, rows):
        assert slot.config is not None
        if slot.optimizer == whole and slot.config.seed < 2:
            keep(rows, slot.config, 200.0 + slot.config.seed)
        elif slot.optimizer == off:
            keep(rows, slot.config, (201.0, 202.0, 100.0)[slot.config.seed])
    (part,) = ablation_parts(league, rows)
    assert part.table is not None
    assert texts(part.table)["noise not learned"][0].endswith("−1.0000 ± 0.0000")


def test_looks_at_the_test_set_are_counted(tmp_path: Path) -> None:
    rows, league = Rows(tmp_path / NAME), League(("digits-mlp",), ("adamw-warmup", "adaarturo"), seeds=1, trials=1)
    config = league.config("digits-mlp", "adaarturo", 0, test=True)
    keep(rows, config, 0.9)
    assert [looks(record) for record in rows.records.values()] == [1] and looked(
        outcome(league, rows, "untouched").sections
    ) == []
    keep(Rows(tmp_path / NAME), config, 0.91)  # by another process, which has not read the first
    keep(rows, league.config("digits-mlp", "adamw-warmup", 0, test=True), 0.9)
    keep(rows, trial(league, "digits-mlp", "adaarturo", 0), 0.9)
    assert sorted(record.result.get("looks", 0) for record in rows.records.values()) == [0, 1, 2]
    (note,) = looked(outcome(league, rows, "untouched").sections)
    assert note.endswith("AdaArturo on digits-mlp 2 times.")


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_trains_and_resumes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    config = League().config("breast-cancer-mlp", name, 0, epochs=2, test=False)
    data = loading.load("breast-cancer")
    whole = train(config, data)
    steps = iter(range(1000))
    with open_run(tmp_path, config) as run, pytest.raises(KeyboardInterrupt):
        train(config, data, run=run, stop=lambda: next(steps) == 60)
    with open_run(tmp_path, config) as run:
        resumed = train(config, data, run=run)
    assert resumed[-1].test_loss == whole[-1].test_loss and whole[-1].train_loss < whole[0].train_loss


def test_ablation_needs_the_repository(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(line, "--stage", "ablation")) == 2
    assert "run it from the root of the repository" in capsys.readouterr().err


@pytest.mark.parametrize("load", [1.0, 4.0])  # a paused process does not add to the load
def test_on_one_thread_the_clock_is_that_of_the_process(tmp_path: Path, load: float) -> None:
    rows, config = Rows(tmp_path / NAME), League(("diabetes-mlp",), THREE).config("diabetes-mlp", "sgd", 0, test=True)
    keep(rows, config, 0.5, load=load, seconds=3.0)
    record = rows.records["diabetes-mlp", config.name]
    assert clocked(record).wall_seconds == record.wall_seconds  # an older row, which does not say
    worked = replace(record, rows=tuple({**row, "seconds_cpu": 1.0} for row in record.rows))
    assert clocked(worked).wall_seconds[:3] == [1, 2, 3] and worked.wall_seconds[:3] == [3, 6, 9]
    parallel = replace(worked, config={**worked.config, "threads": 2})  # its seconds are of both
    assert clocked(parallel).wall_seconds[:3] == [3, 6, 9]
    rows.records["diabetes-mlp", config.name] = replace(worked, result={**worked.result, "seconds": 300.0, "seconds_test": 6.0})
    assert working.epoch_seconds("diabetes-mlp", "sgd", rows) == pytest.approx(1 + 6 / config.epochs)  # what the plan expects


def test_two_leagues_in_one_folder_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("work").mkdir()
    with locked(Path("work/.lock")):
        assert cli.main(words(line, "--stage", "untouched")) == 2
    assert "is training the league here" in capsys.readouterr().err
