"""Sections: what is compared with what, and the numbers of the table by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from arturo_lab.report.across import results_table
from arturo_lab.report.comparison import compare
from arturo_lab.report.evidence import Arrival, Estimate, median_arrival
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.palette import style
from arturo_lab.report.plots import curves_figure
from arturo_lab.report.ranking import ranking
from arturo_lab.report.report_page import drawable
from arturo_lab.report.sections import Point, Section, Variant, sections
from arturo_lab.report.tables import comparison_table, epoch_cell, pairs_table, target_cell
from arturo_lab.runs.collection import read_runs


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
    assert len(curve) == 8 and curve[-1] == Point(pytest.approx(0.8), 0.7, 0.9)
    assert curve[0].mean == pytest.approx(0.8 * 0.5)
    assert variant.curve("eta") == [None] * 8
    assert variant.times == pytest.approx([1.1 * epoch for epoch in range(1, 9)])  # mean of 1.0, 1.1, 1.2


def test_runs_under_way_are_drawn_as_far_as_all_go(make_run, tmp_path: Path) -> None:
    for seed, done in enumerate((4, 2, 0)):
        make_run(tmp_path, "sgd", seed, status="unfinished", done=done)
    (section,) = read(tmp_path)
    (variant,) = section.variants
    assert len(variant.drawn) == 2 and len(variant.curve("train_loss")) == len(variant.times) == 2
    assert variant.estimate is None and section.best is None and section.target is None and section.ranked == []


def test_equal_differences_are_no_less_certain_than_nearly_equal_ones(make_run, tmp_path: Path) -> None:
    """What few seeds can carry is settled before the correction for several comparisons."""
    for seed in range(8):
        make_run(tmp_path, "adamw", seed, final=0.5 + 0.01 * seed)
        make_run(tmp_path, "sgd", seed, final=0.6 + 0.01 * seed)
        make_run(tmp_path, "adam", seed, final=0.6 + 0.0101 * seed)
        make_run(tmp_path, "arturo", seed, final=(0.4, 0.5, 0.6)[seed % 3])
    (section,) = read(tmp_path)
    p = {difference.one.optimizer: difference.p for difference in compare(section, "adamw").differences}
    assert p["sgd"] == p["adam"] == pytest.approx(3 * 2**-7)


def test_comparison_by_hand(make_run, tmp_path: Path) -> None:
    accuracy = {
        "sgd": (0.80, 0.82, 0.81, 0.82) * 2,
        "adam": (0.90, 0.91, 0.95, 0.92) * 2,
        "arturo": (0.91, 0.90, 0.93, 0.93) * 2,
    }
    for name, values in accuracy.items():
        for seed, final in enumerate(values):
            make_run(tmp_path, name, seed, final=final)
    (section,) = read(tmp_path)
    sgd, adam, arturo = section.variants
    assert section.best is adam and section.target == 0.91 and sgd.estimate == Estimate.of(accuracy["sgd"])
    against = compare(section, "adam")
    assert against.reference is adam and against.of(adam) is None and against.tested == 2
    # sgd - adam: -0.10, -0.09, -0.14, -0.10, twice: t = 0.1075 / 0.007258 = 14.8, p = 1.5e-6, which counts as 2^-7; twice that
    assert against.of(sgd).p == 2**-6 and against.of(sgd).estimate.mean == pytest.approx(-0.1075)
    # arturo - adam: 0.01, -0.01, -0.02, 0.01, twice: t = 0.509, p = 0.626
    assert against.of(arturo).p == pytest.approx(0.6263, abs=1e-4)
    assert (against.of(arturo).won, against.of(arturo).lost, against.of(arturo).pairs) == (4, 4, 8)
    every = compare(section, "all")
    assert every.reference is None and [(d.one.optimizer, d.other.optimizer) for d in every.differences] == [
        ("sgd", "adam"),
        ("sgd", "arturo"),
        ("adam", "arturo"),
    ]
    assert compare(section).reference is None  # there is no AdamW
    table = comparison_table(section, against)
    assert [cell.text for cell in table.column("difference")][1] == "reference"
    assert table.column("difference")[0].text == "−10.75 ± 1.72" and table.column("difference")[0].detail == "p = 0.02"
    assert any("what 8 seeds cannot carry, below 0.0078, counts as that" in note for note in table.notes)


def test_lower_is_better_where_the_metric_says_so(make_run, tmp_path: Path) -> None:
    for name, losses in (("adamw", (1.5, 1.6, 1.4)), ("arturo", (1.2, 1.3, 1.2))):
        for seed, loss in enumerate(losses):
            folder = make_run(tmp_path, name, seed, task="lm")
            rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            for epoch, row in enumerate(rows, start=1):
                row["bits"] = loss + (8 - epoch)
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            result = json.loads((folder / "result.json").read_text())
            metric = {"name": "bits", "unit": "bits per byte", "better": "lower"}
            (folder / "result.json").write_text(json.dumps(result | {"bits": loss, "metric": metric}))
    (section,) = read(tmp_path)
    adamw, arturo = section.variants
    assert section.metric == ShownMetric("bits", "bits per byte", higher=False)
    assert section.best is arturo and adamw.values == {0: 1.5, 1: 1.6, 2: 1.4}
    difference = compare(section).of(arturo)
    assert difference.estimate.mean == pytest.approx(0.8 / 3) and difference.won == 3  # plus is better
    assert section.target == 1.5 and arturo.arrivals(1.5, "epochs") == [Arrival(8, True)] * 3
    assert [a.reached for a in adamw.arrivals(1.5, "epochs")] == [True, False, True]
    table = comparison_table(section, compare(section))
    assert table.columns[1].heading == "bits [bits per byte]" and table.column("bits")[1].best
    assert table.columns[2].heading == "against AdamW [bits per byte]"
    assert table.column("difference")[1].text.startswith("+0.2667 ± 0.1434")


def test_a_small_difference_has_the_decimals_of_the_results(make_run, tmp_path: Path) -> None:
    for seed in range(3):
        for name, loss in (("adamw", 0.5), ("sgd", 0.4997)):
            folder = make_run(tmp_path, name, seed, task="lm")
            result = json.loads((folder / "result.json").read_text())
            metric = {"name": "test_loss", "unit": "nats", "better": "lower"}
            (folder / "result.json").write_text(json.dumps(result | {"test_loss": loss, "metric": metric}))
    (section,) = read(tmp_path)
    table = comparison_table(section, compare(section))
    assert [cell.text for cell in table.column("difference")] == ["+0.0003 ± 0.0000", "reference"]
    pairs = pairs_table(section, compare(section, "all"))
    assert pairs.rows[0][2].text == "0.0003 ± 0.0000"


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
    (section,) = read(tmp_path)
    against = compare(section, "arturo")
    sgd, adam = (against.of(by_label(section)[label]) for label in ("SGD", "Adam"))
    assert (sgd.pairs, sgd.p, adam.pairs, adam.p) == (1, None, 0, None) and adam.estimate is None
    assert sgd.estimate.mean == pytest.approx(-0.1)
    assert [note for note in against.notes()] == [
        "Differences are paired by seed (plus is better), ± half of their 95 % t-interval.",
        "1 shared seed cannot carry a p for 2 comparisons; 7 could.",
    ]


def test_the_reference_is_one_variant(make_run, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, "sgd", seed, settings={"lr": 0.1})
        make_run(tmp_path, "sgd", seed, settings={"lr": 0.2})
        make_run(tmp_path, "adamw", seed)
    (section,) = read(tmp_path)
    assert compare(section).reference.label == "AdamW"
    assert compare(section, "sgd").reference is None  # which of the two?
    assert compare(section, "SGD (lr 0.2)").reference.label == "SGD (lr 0.2)"


def test_a_diverged_run_counts(make_run, tmp_path: Path) -> None:
    for seed in range(8):
        make_run(tmp_path, "adamw", seed, final=0.8)
        make_run(tmp_path, "adam", seed, **({"final": 0.99} if seed else {"status": "diverged", "done": 3}))
        make_run(tmp_path, "sgd", seed, **({"final": 0.7} if seed else {"status": "diverged", "done": 3}))
        make_run(tmp_path, "arturo", seed, status="diverged", done=3)
    (section,) = read(tmp_path)
    variants = by_label(section)
    assert section.best is variants["AdamW"]  # a higher mean with a diverged run is not better
    assert [variant.label for variant in section.ranked] == ["AdamW", "Adam", "SGD", "arTuRO"]
    against = compare(section)
    adam = against.of(variants["Adam"])
    assert (adam.won, adam.lost, adam.pairs, adam.estimate, adam.p) == (
        7,
        1,
        8,
        None,
        18 / 256,
    )  # the largest of three: times 1
    lost = against.of(variants["arTuRO"])
    assert (lost.won, lost.lost) == (0, 8) and lost.p == pytest.approx(3 * 2**-7)
    table = comparison_table(section, against)
    assert (
        table.column("test_accuracy")[0].detail == "1 of 8 diverged" and table.column("difference")[0].text == "0 won, 8 lost"
    )
    assert any("worse than any finished run" in note for note in table.notes)
    both = compare(Section(section.protocol, (variants["Adam"], variants["SGD"])), "all").differences[0]
    assert (both.pairs, both.won, both.lost) == (8, 7, 0)  # both diverged on seed 0: neither is ahead
    alone = Section(section.protocol, (variants["Adam"],))
    assert alone.best is alone.variants[0]  # there is no other


def test_time_to_target(make_run, tmp_path: Path) -> None:
    # accuracies 0.9 * (1/2, 3/4, 7/8, ...): above 0.7 from epoch 3 on, above 0.87 from epoch 5
    make_run(tmp_path, "sgd", 0, final=0.9)
    make_run(tmp_path, "sgd", 1, final=0.9, status="unfinished", done=2)
    make_run(tmp_path, "sgd", 2, final=0.9, status="diverged", done=4)
    (section,) = read(tmp_path)
    (variant,) = section.variants
    assert variant.arrivals(0.7, "epochs") == [Arrival(3, True), Arrival(2, False), Arrival(math.inf, False)]
    assert variant.arrivals(0.7, "seconds") == [Arrival(3.0, True), Arrival(2.2, False), Arrival(math.inf, False)]
    cell = target_cell(variant, 0.4)
    assert (cell.value, cell.fields["seconds_to_target"], cell.fields["reached_target"]) == (1.0, 1.1, 3)
    cell = target_cell(variant, 0.7)  # one of two that count
    assert (cell.text, cell.detail, cell.fields["reached_target"]) == ("-", "1 of 3", 1)


def test_target_is_the_middle_variants_accuracy_rounded_down(make_run, tmp_path: Path) -> None:
    for name, final in (("sgd", 0.123), ("adam", 0.949), ("arturo", 0.97)):
        make_run(tmp_path, name, 0, final=final)
    assert read(tmp_path)[0].target == 0.94


def test_a_run_that_is_over_and_did_not_arrive_never_will(make_run, tmp_path: Path) -> None:
    """Whichever of the two took longer: the clock does not decide who counts."""
    make_run(tmp_path, "sgd", 0, final=0.9)
    make_run(tmp_path, "sgd", 1, final=0.6)
    make_run(tmp_path, "adam", 1, final=0.9)
    make_run(tmp_path, "adam", 0, final=0.6)
    for variant in read(tmp_path)[0].variants:
        for clock in ("epochs", "seconds"):
            assert [a.reached for a in variant.arrivals(0.8, clock)].count(True) == 1
            assert median_arrival(variant.arrivals(0.8, clock)) is None


def test_most_seeds_of_the_middle_variant_reach_the_target(make_run, tmp_path: Path) -> None:
    for seed, final in enumerate((0.85, 0.855, 0.95)):  # the mean, 0.885, is reached by one of three
        make_run(tmp_path, "adamw", seed, final=final)
        make_run(tmp_path, "sgd", seed, final=0.7)
        make_run(tmp_path, "arturo", seed, final=0.97)
    (section,) = read(tmp_path)
    adamw = next(variant for variant in section.variants if variant.optimizer == "adamw")
    assert section.target == 0.85 and sum(a.reached for a in adamw.arrivals(section.target, "epochs")) == 3


def test_with_validation_curves_and_target_are_of_the_held_out_part(make_run, tmp_path: Path) -> None:
    folder = make_run(tmp_path, "adamw", 0, final=0.9, validation="1/6")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"test_accuracy": 0.99}))
    (section,) = read(tmp_path)
    assert section.target == 0.9 and section.variants[0].values == {0: 0.99}
    (axes, *_) = curves_figure(section, ["result"]).axes
    assert axes.get_title(loc="left").startswith("validation accuracy [%]")
    assert drawable(section)[0].title == "validation accuracy"


def test_curves_say_who_diverged(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "adamw", 0)
    make_run(tmp_path, "sgd", 0)
    make_run(tmp_path, "sgd", 1, status="diverged", done=4)
    (section,) = read(tmp_path)
    (axes, *_) = curves_figure(section, ["result"]).axes
    assert [text.get_text() for text in axes.texts if "diverged" in text.get_text()] == ["SGD: 1 of 2 diverged"]


def test_a_shared_best_is_a_win_of_both(make_run, tmp_path: Path) -> None:
    for task in ("digits-mlp", "digits-cnn"):
        for name, final in (("sgd", 0.8), ("adam", 0.9), ("adamw", 0.9)):
            make_run(tmp_path, name, 0, final=final, task=task)
    of = sections(read_runs(tmp_path)[0])
    ranked = ranking(of)
    assert ranked is not None
    assert {s.label: (s.wins, s.ranks) for s in ranked.standings} == {
        "Adam": (2, (1.5, 1.5)),
        "AdamW": (2, (1.5, 1.5)),
        "SGD": (0, (3.0, 3.0)),
    }
    assert [variant.label for variant in of[0].ranked_best] == ["Adam", "AdamW"]
    bests = [row[0].text for row in results_table(ranked).rows if all(cell.best for cell in row[1:])]
    assert bests == ["Adam", "AdamW"]


def test_time_split(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "sgd", 0)
    make_run(tmp_path, "sgd", 2)
    (variant,) = read(tmp_path)[0].variants
    # seconds 1.0 and 1.2, of which 0.95 are accounted for
    expected = {"data": 0.05, "forward": 0.3, "backward": 0.4, "optimizer": 0.2, "other": 0.15, "test": 0.1}
    assert variant.time_split == pytest.approx(expected)
    cell = epoch_cell(variant)
    assert cell.value == pytest.approx(1.1) and cell.detail == "1.0 to 1.2 s"


def test_time_split_of_runs_that_do_not_say(make_run, tmp_path: Path) -> None:
    folder = make_run(tmp_path, "sgd", 0, epochs=1)
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "test_accuracy": 0.9}\n')
    (variant,) = read(tmp_path)[0].variants
    assert variant.time_split == {} and epoch_cell(variant).text == "-"
