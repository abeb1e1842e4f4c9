"""The paper's artefacts: its numbers, ours beside them by hand, what is trained for them, and what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from arturo_lab.errors import ConfigError
from arturo_lab.paper import published
from arturo_lab.paper.accuracy import accuracy_table
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.deviations import deviations
from arturo_lab.paper.scales import SCALES, Scale
from arturo_lab.paper.timing import timing_table
from arturo_lab.report.sections import Section, sections
from arturo_lab.runs.collection import read_runs
from arturo_lab.tasks.catalog import TASKS


def read(root: Path) -> list[Section]:
    return sections(read_runs(root)[0])


# --- what the paper printed


def test_published_numbers_agree_with_what_the_paper_says_of_them() -> None:
    """Its text: arTuRO first on every CNN, ahead of Adam and AdamW on every ResNet, SGD first on Fashion-MNIST's ResNet."""
    accuracy = {
        (o, t): estimate.mean for o in ("sgd", "adam", "adamw", "arturo") for t in published.TASKS
        if (estimate := published.accuracy(o, t))
    }  # fmt: skip
    assert len(accuracy) == 24 and all(task in TASKS for task in published.TASKS)
    for task in published.TASKS:
        others = [accuracy[o, task] for o in ("sgd", "adam", "adamw")]
        if task.endswith("cnn"):
            assert accuracy["arturo", task] > max(others)
        assert accuracy["arturo", task] > max(others[1:])
        assert published.seconds_per_epoch("arturo", task) > published.seconds_per_epoch("sgd", task)
    assert accuracy["sgd", "fmnist-resnet18"] == 0.9264 and accuracy["arturo", "cifar100-resnet34"] == 0.6319
    assert published.accuracy("sgd", "cifar10-resnet34").doubled_error == 0.0016
    assert published.accuracy("sgd", "digits-mlp") is None and published.seconds_per_epoch("soap", "fmnist-cnn") is None


# --- what is trained


def test_full_scale_is_the_papers_protocol() -> None:
    configs = ARTEFACTS["table1"].configs(SCALES["full"])
    assert len(configs) == 6 * 10 * 5 and {c.seed for c in configs} == set(range(10))
    assert {c.task for c in configs} == set(published.TASKS)
    assert all((c.epochs, c.batch_size, c.share.subset) == (TASKS[c.task].epochs, 255, None) for c in configs)
    said = deviations(configs)
    assert not any("instead of" in line or "training images" in line for line in said)
    assert any("weight decay" in line for line in said) and any("says 160" in line for line in said)


def test_cpu_scale_is_the_one_declared() -> None:
    """Changing it would orphan every run made for the committed tables."""
    configs = ARTEFACTS["table1"].configs(SCALES["cpu"])
    assert len(configs) == 4 * 3 * 5 and {(c.task, c.epochs, c.share.subset, c.machine.threads) for c in configs} == {
        ("fmnist-cnn", 8, 10_000, 1),
        ("cifar10-cnn", 4, 10_000, 1),
        ("cifar100-cnn", 4, 10_000, 1),
        ("fmnist-resnet18", 4, 5_500, 1),
    }
    names = {c.name for c in configs if c.task == "fmnist-cnn" and c.optimizer == "sgd"}
    assert names == {"sgd-seed0-109debb8", "sgd-seed1-5e01f72c", next(n for n in names if "seed2" in n)}


def test_artefacts_share_their_runs_but_timing_has_its_own() -> None:
    scale = SCALES["cpu"]
    assert ARTEFACTS["table1"].configs(scale) == ARTEFACTS["curves"].configs(scale) == ARTEFACTS["train-loss"].configs(scale)
    timing = ARTEFACTS["timing"]
    assert timing.folder == "timing" and {c.task for c in timing.configs(scale)} == set(published.TASKS)
    assert all(c.training_images % c.batch_size == 0 for c in timing.configs(scale))  # no small last batch to spoil the mean
    first = [(c.seed, c.optimizer) for c in timing.configs(scale)[:6]]
    assert first == [(0, "sgd"), (0, "adam"), (0, "adamw"), (0, "arturo"), (0, "arturo-paper"), (1, "sgd")]  # they take turns


def test_some_of_the_tasks() -> None:
    table1, scale = ARTEFACTS["table1"], SCALES["cpu"]
    assert {c.task for c in table1.configs(scale, ["cifar10-cnn"])} == {"cifar10-cnn"}
    with pytest.raises(ConfigError, match=r"^tasks: cifar10-resnet34 is not part of this scale; it is of --scale full"):
        table1.configs(scale, ["cifar10-resnet34"])  # the scale leaves it out
    with pytest.raises(ConfigError, match=r"^tasks: cifar10-cnn is named twice"):
        table1.configs(scale, ["cifar10-cnn", "cifar10-cnn"])


def test_an_ablation_is_one_entry(make_run, tmp_path: Path) -> None:
    entry = replace(ARTEFACTS["curves"], title="Ablation", tasks=("fmnist-cnn",), optimizers=("arturo", "arturo-default"))
    configs = entry.configs(SCALES["cpu"])
    assert {(c.task, c.optimizer) for c in configs} == {("fmnist-cnn", "arturo"), ("fmnist-cnn", "arturo-default")}
    make_run(tmp_path, "arturo-default", 0, task="fmnist-cnn")
    assert [row[1].text for row in entry.make(read(tmp_path)).table.rows] == ["arTuRO (default)"]


# --- what they show


def test_accuracy_beside_the_papers(make_run, tmp_path: Path) -> None:
    for seed, (sgd, ours) in enumerate(((0.90, 0.93), (0.91, 0.94), (0.92, 0.95))):
        make_run(tmp_path, "sgd", seed, task="fmnist-cnn", final=sgd)
        make_run(tmp_path, "arturo", seed, task="fmnist-cnn", final=ours)
    make_run(tmp_path, "adam", 0, task="fmnist-cnn", status="diverged", done=4)
    make_run(tmp_path, "soap", 0, task="fmnist-cnn", final=0.5)
    content = accuracy_table(read(tmp_path), "arturo")
    rows = {row[1].text: tuple(cell.text for cell in row) for row in content.table.rows}
    # deviations -1, 0, 1: standard deviation 1, doubled standard error 2 / sqrt(3) = 1.15
    assert rows["SGD"] == ("fmnist-cnn", "SGD", "91.00 ± 1.15", "−3.00 ± 0.00", "92.84 ± 0.08", "−1.84", "3")
    assert rows["arTuRO"] == ("fmnist-cnn", "arTuRO", "94.00 ± 1.15", "reference", "93.01 ± 0.10", "+0.99", "3")
    assert rows["Adam"] == ("fmnist-cnn", "Adam", "-", "0 won, 1 lost", "92.90 ± 0.10", "-", "0, 1 diverged")
    assert rows["SOAP"] == ("fmnist-cnn", "SOAP", "50.00", "−43.00", "-", "-", "1")
    best = [
        (row[1].text, column.field)
        for row in content.table.rows
        for column, cell in zip(content.table.columns, row, strict=True)
        if cell.best
    ]
    assert best == [("arTuRO", "test_accuracy"), ("arTuRO", "paper_accuracy")]
    assert content.after == ("- Fashion-MNIST, CNN: ours arTuRO > SGD > SOAP; paper arTuRO > Adam > SGD.",)
    assert "3 shared seeds cannot carry a p for 3 comparisons; 7 could." in content.table.notes
    entry = next(entry for entry in content.table.records() if entry["optimizer"] == "sgd")
    assert entry["paper_accuracy"] == 0.9284 and entry["paper_accuracy_doubled_error"] == pytest.approx(0.0008)
    assert entry["test_accuracy"] == pytest.approx(0.91)


@pytest.mark.parametrize("name", ["curves", "train-loss"])
def test_curves(make_run, tmp_path: Path, name: str) -> None:
    for seed, final in enumerate((0.79, 0.80, 0.81)):
        make_run(tmp_path, "sgd", seed, task="fmnist-cnn", final=final)
        make_run(tmp_path, "sgd", seed, task="cifar10-cnn", final=final, epochs=6)
        make_run(tmp_path, "sgd", seed, task="cifar100-cnn", final=final, epochs=6)
    content = ARTEFACTS[name].make(read(tmp_path))
    task, label, quarter, *_, end, runs = content.table.rows[0]
    # after 2 of 8 epochs the made-up runs are at 3/4 of their end
    expected = {
        "curves": (("60.00", "59.25 to 60.75"), ("80.00", "79.00 to 81.00")),
        "train-loss": (("0.7300", "0.7200 to 0.7400"), ("0.04359", "0.03359 to 0.05359")),
    }[name]
    assert (task.text, label.text, runs.text) == ("fmnist-cnn", "SGD", "3")
    assert ((quarter.text, quarter.detail), (end.text, end.detail)) == expected
    data = content.table.records()
    assert len(data) == 3 and len(data[0]["mean"]) == 8 and len(data[1]["mean"]) == 6
    assert content.figure is not None
    panels = [axes for axes in content.figure.axes if axes.get_visible()]
    assert [axes.get_title("left").splitlines()[0] for axes in panels] == [
        "Fashion-MNIST, CNN",
        "CIFAR-10, CNN",
        "CIFAR-100, CNN",
    ]
    assert panels[0].lines[0].get_ydata().tolist() == data[0]["mean"]


def test_timing_is_the_median_of_warm_epochs_against_sgd(make_run, tmp_path: Path) -> None:
    # made-up runs: 1.0, 1.1, 1.2 seconds per epoch by seed; 0.2 seconds of them in the optimizer
    for seed in range(3):
        make_run(tmp_path, "sgd", seed, task="fmnist-cnn", epochs=2, batch_size=255, subset=5100)
    cold = make_run(tmp_path, "arturo", 2, task="fmnist-cnn", epochs=2, batch_size=255, subset=5100)
    text = (cold / "metrics.jsonl").read_text()
    (cold / "metrics.jsonl").write_text(
        text.replace('"seconds": 1.2,', '"seconds": 99.0,', 1).replace('"seconds": 1.2,', '"seconds": 2.2,')
    )
    content = timing_table(read(tmp_path))
    assert [tuple(cell.text for cell in row) for row in content.table.rows] == [
        ("fmnist-cnn", "SGD", "1.10", "1.000", "10.00", "1.23", "1.000"),
        ("fmnist-cnn", "arTuRO", "2.20", "1.833", "10.00", "1.85", "1.504"),
    ]
    assert content.table.rows[0][2].detail == "1.00 to 1.20"
    assert content.table.records()[1]["against_sgd"] == pytest.approx(2.2 / 1.2)  # within its round, not by the medians
    assert content.figure is not None


def test_nothing_to_show_is_no_crash(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "adam", 0, task="fmnist-cnn", status="unfinished", done=0)
    for artefact in ARTEFACTS.values():
        if artefact.drawn:
            continue
        content = artefact.make(read(tmp_path))
        assert len(content.table.rows) == 1 and content.figure is None


# --- what differs


def test_every_reduction_is_named() -> None:
    said = deviations(ARTEFACTS["table1"].configs(SCALES["cpu"]))
    assert said[0] == "fmnist-cnn: 8 epochs instead of 120, 10,000 of 60,000 training images."
    assert any(line.startswith("3 seeds instead of 10") for line in said) and any(
        "tuned for its whole" in line for line in said
    )
    small = Scale("", tasks={}, seeds=range(10), timing={}, rounds=1)
    said = deviations(small.configs(["digits-mlp"], ["sgd"]))
    assert said == ["digits-mlp is not in the paper."]
    said = deviations(ARTEFACTS["timing"].configs(SCALES["cpu"], ["fmnist-cnn"]), timing=True)
    assert said[0] == "fmnist-cnn: 3 epochs instead of 120, 2,550 of 60,000 training images."
    assert any("3 rounds" in line and "RTX 3080" in line for line in said)
