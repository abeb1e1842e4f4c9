"""``arturo sweep``: how the result depends on lr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from arturo_lab import cli
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.sections import sections
from arturo_lab.report.sweep import curves, document, near_the_best, sweep_table
from arturo_lab.runs.collection import read_runs


@pytest.fixture
def swept(make_run, tmp_path: Path) -> Path:
    accuracy = {"adamw": (0.5, 0.885, 0.90, 0.895, 0.3), "sgd": (0.2, 0.4, 0.6, 0.8, 0.85)}
    for name, values in accuracy.items():
        for seed in range(2):
            for i, final in enumerate(values):
                lr = 10.0 ** (i - 4)
                lost = {"status": "diverged", "done": 3} if name == "adamw" and i == 4 and seed else {}
                make_run(tmp_path, name, seed, final=final + 0.001 * seed, settings={"lr": lr}, **lost)
    return tmp_path


def test_table_by_hand(swept: Path) -> None:
    (section,) = sections(read_runs(swept)[0])
    sgd, adamw = curves(section)
    assert [lr for lr, _ in adamw.points] == [1e-4, 1e-3, 1e-2, 0.1, 1.0] and adamw.best[0] == 1e-2
    assert not adamw.at_edge and sgd.at_edge and sgd.best[0] == 1.0
    assert adamw.range_within(0.8845) == (1e-3, 0.1) and adamw.range_within(0.95) is None
    table = sweep_table(section, [sgd, adamw])
    rows = {row[0].text: [cell.text for cell in row] for row in table.rows}
    assert rows["AdamW"][1] == "0.01" and rows["AdamW"][3:] == ["0.01 to 0.1", "1.0", "0.01 to 0.1", "1 of 10"]
    assert rows["SGD"][3:6] == ["1", "0.0", "-"] and table.rows[0][1].detail == "at the end of the range"
    assert table.rows[1][2].best and not table.rows[0][2].best
    record = table.records()[1]
    assert record["curve"][-1] == {
        "lr": 1.0,
        "mean": pytest.approx(0.3),
        "half_width": None,
        "doubled_error": None,
        "n": 1,
        "diverged": 1,
    }


def test_figure_shows_every_lr_and_what_diverged(swept: Path) -> None:
    (part,) = document(sections(read_runs(swept)[0]), "arturo sweep").parts
    (axes,) = part.figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["AdamW"].get_xdata().tolist() == [1e-4, 1e-3, 1e-2, 0.1, 1.0] and axes.get_xscale() == "log"
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[1.0]]
    assert "diverged at this lr" in part.figure.legends[0].get_title().get_text()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "digits-mlp", "--optimizers", "sgd", "adamw", "--lr", "1e-3:1e-2", "--epochs", "1", "--subset", "64"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    assert len(list((tmp_path / "digits-mlp").iterdir())) == 2 * 3
    numbers = json.loads((tmp_path / "sweep-digits-mlp.json").read_text())
    assert [point["lr"] for point in numbers["rows"][0]["curve"]] == [0.001, 0.00316, 0.01]
    assert str(tmp_path) not in (tmp_path / "sweep-digits-mlp.md").read_text()
    assert (tmp_path / "sweep-digits-mlp.png").exists()
    capsys.readouterr()
    assert cli.main([*command, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("reused: 6 of 6 runs\n")


def test_figure_is_cut_near_the_best() -> None:
    figure = Figure()
    axes = figure.subplots()
    near_the_best(axes, [212.7, 215.2, 220.0, 530.0], ShownMetric("test_loss", "nats", higher=False))
    low, high = axes.get_ylim()
    assert low < 212.7 and 220 < high < 300 and "cut: some are above" in axes.texts[0].get_text()
    axes = Figure().subplots()
    near_the_best(axes, [0.9, 0.91, 0.92], ShownMetric())
    assert not axes.texts


@pytest.mark.parametrize("text", ["1e-1:1e-4", "0:1", "a:b", "1e-3", "1:2:3", "1e-3:inf"])
def test_bad_ranges(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "digits-mlp", "--lr", text, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"arturo: lr: must be LOW:HIGH with 0 < LOW < HIGH, such as 1e-4:1e-1, got {text!r}\n"
