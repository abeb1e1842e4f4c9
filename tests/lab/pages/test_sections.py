"""Sections: what is compared with what, and the numbers of the table by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from arturo_lab.report.evidence import Arrival, Estimate, bootstrap_interval
from arturo_lab.report.palette import style
from arturo_lab.report.sections import Section, Variant, sections
from arturo_lab.runs.records import read_runs


def read(root: Path) -> list[Section]:
    return sections(read_runs(root)[0])


def by_label(section: Section) -> dict[str, Variant]:
    return {variant.label: variant for variant in section.variants}


def test_protocols_are_kept_apart(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "sgd", 0, task="unheard-of")
    make_run(tmp_path, "sgd", 0, subset=500)
    make_run(tmp_path, "sgd", 0, task="digits-cnn")
    make_run(tmp_path, "sgd", 0)
    make_run(tmp_path, "adam", 0, epochs=4)
    found = read(tmp_path)
    assert [(s.task, s.protocol["epochs"], s.protocol["subset"]) for s in found] == [
        ("digits-mlp", 4, None),
        ("digits-mlp", 8, 500),
        ("digits-mlp", 8, None),
        ("digits-cnn", 8, None),
        ("unheard-of", 8, None),
    ]
    assert [found[0].title, found[-1].title] == ["8x8 digits, MLP", "unheard-of"]


def test_variants_are_labelled_by_what_differs(make_run, tmp_path: Path) -> None:
    for seed in (1, 0):
        make_run(tmp_path, "arturo", seed)
        make_run(tmp_path, "sgd", seed, settings={"lr": 0.5, "momentum": 0.9})
        make_run(tmp_path, "sgd", seed, settings={"lr": 0.05, "momentum": 0.9})
        make_run(tmp_path, "sgd", seed, settings={"lr": 0.5, "momentum": 0.9}, threads=2)
        make_run(tmp_path, "zeta", seed)
    (section,) = read(tmp_path)
    labels = ["SGD (lr 0.05, threads unset)", "SGD (lr 0.5, threads unset)", "SGD (lr 0.5, threads 2)", "arTuRO", "zeta"]
    assert [variant.label for variant in section.variants] == labels
    assert all([run.config["seed"] for run in variant.runs] == [0, 1] for variant in section.variants)
    first, second, *_ = section.variants
    assert first.look == style("sgd") and second.look.light == first.look.light and second.look.dashes != first.look.dashes
    assert section.seeds == [0, 1] and len(section.runs) == 10


def test_curves_are_means_over_finished_runs(make_run, tmp_path: Path) -> None:
    for seed, final in enumerate((0.8, 0.9, 0.7)):
        make_run(tmp_path, "sgd", seed, final=final)
    make_run(tmp_path, "sgd", 3, status="diverged", done=4)
    make_run(tmp_path, "sgd", 4, status="unfinished", done=2)
    (variant,) = read(tmp_path)[0].variants
    assert len(variant.drawn) == 3
    curve = variant.curve("test_accuracy")
    assert len(curve) == 8 and curve[-1] == Estimate.of([0.8, 0.9, 0.7])
    assert curve[0].mean == pytest.approx(0.8 * 0.5)
    assert variant.curve("eta") == [None] * 8
    assert variant.times == pytest.approx([1.1 * epoch for epoch in range(1, 9)])  # mean of 1.0, 1.1, 1.2


def test_runs_under_way_are_drawn_as_far_as_all_go(make_run, tmp_path: Path) -> None:
    for seed, done in enumerate((4, 2, 0)):
        make_run(tmp_path, "sgd", seed, status="unfinished", done=done)
    (section,) = read(tmp_path)
    (variant,) = section.variants
    assert len(variant.drawn) == 2 and len(variant.curve("train_loss")) == len(variant.times) == 2
    (row,) = section.summary()
    assert row.accuracy is None and row.interval is None and not row.best and section.target is None


def test_summary_by_hand(make_run, tmp_path: Path) -> None:
    accuracy = {"sgd": (0.80, 0.82, 0.81), "adam": (0.90, 0.91, 0.95), "arturo": (0.91, 0.90, 0.93)}
    for name, values in accuracy.items():
        for seed, final in enumerate(values):
            make_run(tmp_path, name, seed, final=final)
    (section,) = read(tmp_path)
    rows = {row.variant.optimizer: row for row in section.summary()}
    assert [name for name, row in rows.items() if row.best] == ["adam"] and section.target == 0.91
    assert rows["sgd"].accuracy == Estimate.of(accuracy["sgd"]) and rows["sgd"].interval == bootstrap_interval(accuracy["sgd"])
    # differences to adam: sgd 0.10, 0.09, 0.14: t = 0.11 / 0.015275 = 7.2, p = 0.0188. arturo -0.01, 0.01, 0.02: t = 0.756,
    # p = 0.529. Holm: twice the smaller one.
    assert rows["sgd"].p == pytest.approx(0.0375, abs=1e-4) and rows["arturo"].p == pytest.approx(0.5286, abs=1e-4)
    assert rows["adam"].p is None
    assert rows["sgd"].behind == pytest.approx(0.11) and rows["arturo"].behind == pytest.approx(0.02 / 3)
    assert (rows["sgd"].pairs, rows["adam"].pairs) == (3, 0)
    assert rows["sgd"].loss.mean == pytest.approx(2 * 0.7**8)


def test_an_option_of_later_makes_no_other_variant(make_run, tmp_path: Path) -> None:
    """Runs of before there was ``--channels-last`` stand together with those that do without."""
    for seed, options in ((0, {}), (1, {"channels_last": False, "fold": None}), (2, {"channels_last": True})):
        folder = make_run(tmp_path, "sgd", seed)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | options))
    labels = {variant.label: len(variant.runs) for variant in read(tmp_path)[0].variants}
    assert labels == {"SGD (channels_last unset)": 2, "SGD (channels_last True)": 1}


def test_pairs_are_shared_seeds(make_run, tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        make_run(tmp_path, "arturo", seed, final=0.9)
    make_run(tmp_path, "sgd", 2, final=0.8)
    make_run(tmp_path, "sgd", 5, final=0.8)
    make_run(tmp_path, "adam", 7, final=0.8)
    rows = {row.variant.optimizer: row for row in read(tmp_path)[0].summary()}
    assert (rows["sgd"].pairs, rows["sgd"].p, rows["adam"].pairs, rows["adam"].p) == (1, None, 0, None)
    assert rows["adam"].behind is None and rows["sgd"].behind == pytest.approx(0.1)


def test_who_diverges_is_not_the_best(make_run, tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path, "sgd", seed, final=0.8)
    make_run(tmp_path, "adam", 0, final=0.99)
    make_run(tmp_path, "adam", 1, status="diverged", done=3)
    (section,) = read(tmp_path)
    assert section.best() is by_label(section)["SGD"]
    alone = Section(section.protocol, (by_label(section)["Adam"],))
    assert alone.best() is alone.variants[0]  # there is no other


def test_time_to_target(make_run, tmp_path: Path) -> None:
    # accuracies 0.9 * (1/2, 3/4, 7/8, ...): above 0.7 from epoch 3 on, above 0.87 from epoch 5
    make_run(tmp_path, "sgd", 0, final=0.9)
    make_run(tmp_path, "sgd", 1, final=0.9, status="unfinished", done=2)
    make_run(tmp_path, "sgd", 2, final=0.9, status="diverged", done=4)
    (section,) = read(tmp_path)
    (variant,) = section.variants
    assert variant.arrivals(0.7, "epochs") == [Arrival(3, True), Arrival(2, False), Arrival(math.inf, False)]
    assert variant.arrivals(0.7, "seconds") == [Arrival(3.0, True), Arrival(2.2, False), Arrival(math.inf, False)]
    (row,) = section.summary(target=0.4)
    assert (row.epochs_to_target, row.seconds_to_target, row.reached) == (1.0, 1.1, 3)
    (row,) = section.summary(target=0.7)  # one of two that count
    assert (row.epochs_to_target, row.reached) == (None, 1)


def test_target_is_the_middle_variants_accuracy_rounded_down(make_run, tmp_path: Path) -> None:
    for name, final in (("sgd", 0.123), ("adam", 0.949), ("arturo", 0.97)):
        make_run(tmp_path, name, 0, final=final)
    assert read(tmp_path)[0].target == 0.94


def test_time_split(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "sgd", 0)
    make_run(tmp_path, "sgd", 2)
    (variant,) = read(tmp_path)[0].variants
    # seconds 1.0 and 1.2, of which 0.95 are accounted for
    expected = {"data": 0.05, "forward": 0.3, "backward": 0.4, "optimizer": 0.2, "other": 0.15, "test": 0.1}
    assert variant.time_split == pytest.approx(expected)
    assert variant.seconds_per_epoch == pytest.approx(1.1)


def test_time_split_of_runs_that_do_not_say(make_run, tmp_path: Path) -> None:
    folder = make_run(tmp_path, "sgd", 0, epochs=1)
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "test_accuracy": 0.9}\n')
    (variant,) = read(tmp_path)[0].variants
    assert variant.time_split == {} and variant.seconds_per_epoch is None
