"""``arturo report``: what it prints and writes, what it refuses, and that nothing from a file is treated as HTML."""

from __future__ import annotations

import html.parser
import itertools
import json
from pathlib import Path

import jinja2
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from arturo_lab import cli
from arturo_lab.report.metric import ShownMetric
from arturo_lab.report.page import as_json, plain, rendered
from arturo_lab.report.plots import curves_figure, limits, set_scale, stems
from arturo_lab.report.report_page import chart_title, drawable
from arturo_lab.report.sections import sections
from arturo_lab.report.tables import environment_table
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.records import Record
from arturo_lab.tasks.catalog import TASKS


def report(root: Path, *arguments: str) -> int:
    return cli.main(["report", str(root), *arguments])


@pytest.fixture
def three(make_run, tmp_path: Path) -> Path:
    for seed in range(3):
        make_run(tmp_path / "runs", "sgd", seed, final=0.80 + 0.01 * seed)
        make_run(tmp_path / "runs", "arturo", seed, final=0.90 + 0.01 * seed)
    return tmp_path / "runs"


def test_prints_the_table_and_writes_page_and_figures(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(three) == 0
    out, err = capsys.readouterr()
    # 90, 91, 92: standard error 1 / sqrt(3), times 4.30
    assert "91.00 ± 2.48" in out and "10.00 ± 0.00" in out and err == ""
    assert "3 shared seeds cannot carry a p for 1 comparison; 6 could." in " ".join(out.split())
    assert [line.split(": ")[1] for line in out.splitlines()[-3:]] == [
        str(three / name) for name in ("figures/digits-mlp.png", "report.html", "summary.json")
    ]
    names = {path.name for path in (three / "figures").iterdir()}
    panels = ("", "-result", "-train-loss", "-time")
    assert names == {f"digits-mlp{panel}.{kind}" for panel in panels for kind in ("png", "pdf")}
    assert (three / "figures" / "digits-mlp.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(three / "figures" / "digits-mlp-time.png") as picture:
        assert picture.width == 700


def test_page_holds_the_numbers(three: Path) -> None:
    assert report(three, "--no-figures", "--target", "0.8", "--against", "arturo") == 0
    text = (three / "report.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in three.iterdir()) == ["digits-mlp", "report.html", "summary.json", "tables"]
    for said in (
        "91.00 ± 2.48",
        "−10.00",
        "3 pairs",
        "epochs to 80 %",
        "4.0 s, 3 of 3",
        "a &lt;fast&gt; one",
    ):
        assert said in text, said
    assert "3 shared seeds cannot carry a p for 1 comparison; 6 could." in text


def test_enough_seeds_have_a_p(three: Path, make_run) -> None:
    for seed in range(3, 6):
        make_run(three, "sgd", seed, final=0.8 + 0.01 * seed)
        make_run(three, "arturo", seed, final=0.9 + 0.01 * seed)
    assert report(three, "--no-figures", "--against", "arturo") == 0
    text = (three / "report.html").read_text(encoding="utf-8")
    assert "p = 0.03" in text and "what 6 seeds cannot carry, below 0.031, counts as that" in text
    assert "correction for all comparisons with arTuRO on the task" in text


def test_summary_holds_the_numbers(three: Path, make_run) -> None:
    make_run(three, "sgd", 3, status="diverged", done=4)
    assert report(three, "--no-figures", "--target", "0.8", "--against", "arturo") == 0
    summary = json.loads((three / "summary.json").read_text())
    assert (
        summary["command"] == f"arturo report {three} --target 0.8 --against arturo"
        and summary["environments"][0]["torch"] == "2.13.0"
    )
    (task,) = summary["tasks"]
    assert {"task": "digits-mlp", "epochs": 8, "batch_size": 32, "seeds": [0, 1, 2, 3], "target": 0.8}.items() <= task.items()
    sgd, arturo = task["optimizers"]
    # 80, 81, 82: standard deviation 1, doubled standard error 2 / sqrt(3), t-interval 4.30 / sqrt(3)
    assert sgd["test_accuracy"] == pytest.approx(0.81) and sgd["test_accuracy_n"] == 3
    assert sgd["test_accuracy_doubled_error"] == pytest.approx(0.02 / 3**0.5, rel=1e-6)
    assert sgd["test_accuracy_half_width"] == pytest.approx(0.0430265 / 3**0.5, rel=1e-5)
    assert sgd["test_accuracy_by_seed"] == {"0": 0.8, "1": 0.81, "2": 0.82}
    assert (sgd["finished"], sgd["diverged"], sgd["unfinished"]) == (3, 1, 0) and not sgd["best"] and arturo["best"]
    assert (sgd.get("p"), sgd["pairs"], sgd["difference"]) == (None, 3, pytest.approx(-0.1))
    assert arturo["epochs_to_target"] == 4 and arturo["reached_target"] == 3 and task["against"] == "arTuRO"
    assert sgd["seconds_per_epoch"] == pytest.approx(1.1) and sgd["settings"] == {"lr": 0.1}
    assert task["metric"] == {"name": "test_accuracy", "unit": "%", "better": "higher"} and summary["across"] is None


def test_all_pairs_when_nothing_is_named(three: Path, make_run, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        make_run(three, "adam", seed, final=0.85)
    assert report(three, "--no-figures", "--against", "all") == 0
    assert "8x8 digits, MLP: all pairs" in capsys.readouterr().out
    (task,) = json.loads((three / "summary.json").read_text())["tasks"]
    assert [(row["ahead"], row["behind"]) for row in task["pairs"]] == [("Adam", "SGD"), ("arTuRO", "SGD"), ("arTuRO", "Adam")]
    assert all(row["pairs"] == 3 and row["p"] is None for row in task["pairs"]) and "difference" not in task["optimizers"][0]
    text = (three / "report.html").read_text(encoding="utf-8")
    assert "<details open><summary>All pairs" in text


def test_tables_are_files(three: Path) -> None:
    assert report(three, "--no-figures", "--against", "sgd") == 0
    assert sorted(path.name for path in (three / "tables").iterdir()) == [
        "digits-mlp-seeds.csv",
        "digits-mlp-seeds.tex",
        "digits-mlp.csv",
        "digits-mlp.tex",
    ]
    head, *rows = (three / "tables" / "digits-mlp-seeds.csv").read_text().splitlines()
    assert head == "label,seed_0,seed_1,seed_2,optimizer" and rows == ["SGD,0.8,0.81,0.82,sgd", "arTuRO,0.9,0.91,0.92,arturo"]


def test_a_target_beyond_all_accuracies(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(three, "--target", "90") == 2
    assert capsys.readouterr().err == "arturo: target: must be above 0 and at most 1, such as 0.9, got 90\n"


def test_a_reference_nobody_ran(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(three, "--against", "lion") == 2
    assert capsys.readouterr().err == "arturo: against: no runs of 'lion'; use one of arturo, sgd, or all for all pairs\n"
    assert [path.name for path in three.iterdir()] == ["digits-mlp"]


def test_over_tasks(three: Path, make_run, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        make_run(three, "sgd", seed, task="digits-cnn", final=0.95)
        make_run(three, "arturo", seed, task="digits-cnn", final=0.9)
        make_run(three, "adam", seed, task="digits-cnn", final=0.9)
    assert report(three) == 0
    assert "All 2 tasks: wins and ranks" in capsys.readouterr().out
    across = json.loads((three / "summary.json").read_text())["across"]
    ranks = {row["label"]: row for row in across["ranks"]["rows"]}
    assert list(ranks) == ["SGD", "arTuRO"] and ranks["SGD"]["ranks"] == [2, 1] and ranks["arTuRO"]["wins"] == 1
    assert across["ranks"]["notes"][-1] == "Not on every task, so not ranked: Adam."
    # digits-mlp's target is SGD's 81 %, which arTuRO reaches first; digits-cnn's is 90 %, SGD first
    ratios = {(row["label"], row["clock"]): row["ratios"] for row in across["profiles"]["rows"]}
    assert ratios["SGD", "steps"][0] == 1 and ratios["arTuRO", "steps"][0] == 1
    assert (three / "figures" / "profiles.png").exists() and (three / "tables" / "profiles.csv").exists()
    assert 'id="across"' in (three / "report.html").read_text(encoding="utf-8")


def test_out_of_the_way(three: Path, tmp_path: Path) -> None:
    assert report(three, "--out", str(tmp_path / "deep" / "paper")) == 0
    assert sorted(path.name for path in (tmp_path / "deep" / "paper").iterdir()) == [
        "figures",
        "report.html",
        "summary.json",
        "tables",
    ]
    assert [path.name for path in three.iterdir()] == ["digits-mlp"]
    assert report(three, "--out", str(tmp_path / "deep" / "paper")) == 0  # again, over its own output


def test_broken_runs_are_said_and_left_out(three: Path, make_run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(three, "adam", 0)
    (folder / "metrics.jsonl").write_text("{\n")
    assert report(three, "--no-figures") == 0
    assert f"arturo: left out: digits-mlp/{folder.name}: metrics.jsonl: line 1 is corrupt" in capsys.readouterr().err
    text = (three / "report.html").read_text(encoding="utf-8")
    assert f"digits-mlp/{folder.name}: metrics.jsonl: line 1 is corrupt" in text


def test_nothing_has_finished(make_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "sgd", 0, status="unfinished", done=3)
    make_run(tmp_path, "adam", 0, status="unfinished", done=0)
    assert report(tmp_path) == 0
    assert "1 unfinished" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No run has finished yet" in text and "SGD, seed 0: unfinished, 3 of 8 epochs" in text
    assert (tmp_path / "figures" / "digits-mlp.png").exists()


def test_nothing_has_begun(make_run, tmp_path: Path) -> None:
    make_run(tmp_path, "adam", 0, status="unfinished", done=0)
    assert report(tmp_path) == 0
    assert list((tmp_path / "figures").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "arturo: DIR: nowhere does not exist"),
        (["."], "arturo: DIR: . holds no run folders"),
        ([".", "--target", "nan"], "arturo: target: must be a finite number, such as 0.9 for 90 % accuracy, got nan"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


class Tags(html.parser.HTMLParser):
    """Every element and attribute of a page, as a browser would read them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def test_nothing_from_a_file_becomes_html(make_run, tmp_path: Path) -> None:
    evil = "\"'><img src=x onerror=alert(1)></script><script>alert(1)</script>[bold]{{title}}"
    folder = make_run(tmp_path, "sgd", 0, task="digits-mlp", settings={evil: evil}, device=evil)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"optimizer": evil, "task": evil, "batch_size": evil, "subset": evil})
    )
    (folder / "environment.json").write_text(json.dumps({evil: [evil, {evil: 1}]}))
    (make_run(tmp_path, "sgd", 1) / "result.json").write_text(json.dumps({"status": evil}))
    assert report(tmp_path) == 0
    tags = Tags((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert tags.names.count("script") == 2 and "img" not in tags.names
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    addresses = [value for name, value in tags.attributes if name in ("src", "href", "action", "xlink:href")]
    assert all(address.startswith(("#", "data:text/plain;charset=utf-8,")) for address in addresses)
    assert all("<" not in address and '"' not in address for address in addresses)
    assert all(path.resolve().parent == (tmp_path / "figures").resolve() for path in (tmp_path / "figures").iterdir())


def test_as_json_survives_any_string() -> None:
    value = {"a": "</script><script>\u2028&", "b": [float("inf"), 1.5, None, True], "c": (1, 2)}
    text = as_json(value)
    assert "<" not in text and ">" not in text and "&" not in text
    assert json.loads(text) == {"a": value["a"], "b": [None, 1.5, None, True], "c": [1, 2]}
    assert plain({"x": float("nan"), "y": (1 / 3, 7, 1e-30 / 3)}) == {"x": None, "y": [0.3333333, 7, 3.333333e-31]}


def test_environments_differ_by_machine_and_not_by_revision(tmp_path: Path) -> None:
    def run(torch: str, **others: object) -> Record:
        return Record(tmp_path, {}, {"revision": "a", "torch": torch, "cores": 2, **others}, (), {}, "finished")

    runs = [run("2.12"), run("2.13"), run("2.13", revision="b"), run("2.13", revision="b", resumed_with=["c"])]
    table = environment_table(runs)
    assert [column.name for column in table.columns] == ["property", "1 run", "3 runs"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["torch", "2.12", "2.13"],
        ["cores", "2", "2"],
        ["revision", "a", "a (1 run), b (2 runs)"],
        ["resumed_with", "", "['c'] (1 run)"],
    ]


def test_templates_escape_and_miss_nothing() -> None:
    assert rendered("key.html", colours='"><b>', dashes="none", marker="").count("<b>") == 0
    with pytest.raises(jinja2.UndefinedError):
        rendered("key.html", colours="")


# --- figures


def test_figure_draws_what_the_section_says(three: Path) -> None:
    (section,) = sections(read_runs(three)[0])
    accuracy, loss, time = curves_figure(section, ["result", "train-loss", "time"]).axes
    sgd, arturo = section.variants
    assert [line.get_label() for line in accuracy.lines] == ["SGD", "arTuRO"]
    assert [line.get_color() for line in accuracy.lines] == [sgd.look.light, arturo.look.light]
    assert accuracy.lines[1].get_ydata().tolist() == [point.mean for point in arturo.curve("test_accuracy")]
    assert time.lines[1].get_xdata().tolist() == arturo.times and loss.get_yscale() == "log"
    assert accuracy.get_title("left") == "test accuracy [%], linear scale" and "log scale" in loss.get_title("left")
    band = accuracy.collections[1].get_paths()[0].vertices
    at_end = band[band[:, 0] == 8][:, 1]
    assert (min(at_end), max(at_end)) == pytest.approx((0.90, 0.92))  # the lowest and the highest seed


@pytest.mark.parametrize(
    ("task", "unit"),
    [("diabetes-mlp", " [variance of the targets]"), ("rosenbrock", ""), ("byte-gru", " [nats]"), ("digits-mlp", " [nats]")],
)
def test_losses_have_the_unit_of_their_task(task: str, unit: str, make_run, tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path, "sgd", seed, task=task)
    (section,) = sections(read_runs(tmp_path)[0])
    if TASKS[task].metric.name == "loss":
        assert section.metric.heading == f"test loss{unit}"
    (axes,) = curves_figure(section, ["train-loss"]).axes
    assert axes.get_title("left").startswith(f"train loss{unit}, ")
    titles = {metric.name: chart_title(metric) for metric in drawable(section)}
    assert titles["train_loss"] == f"train loss{unit}" and titles["test_loss"] == f"test loss{unit}"


def test_figure_explains_bands_and_cuts(three: Path) -> None:
    (section,) = sections(read_runs(three)[0])
    figure = curves_figure(section, ["result"])
    (axes,) = figure.axes
    (legend,) = figure.legends
    said = legend.get_title().get_text().replace("\n", " ")
    assert said == "Lines: means over 3 seeds. Bands: from the lowest to the highest seed."
    low, _ = axes.get_ylim()
    assert [text.get_text() for text in axes.texts] == [f"cut: the first epochs are below {100 * low:.2f} %"]


@pytest.mark.parametrize("spread", [1.5, 4.0, 30.0, 1e3, 1e6])
def test_tick_labels_do_not_collide(spread: float) -> None:
    figure = Figure(figsize=(3.5, 2.7), layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    set_scale(axes, [(np.geomspace(1, spread, 20),) * 3], ShownMetric("train_loss", "nats", higher=False))
    axes.plot(np.geomspace(1, spread, 20))
    canvas.draw()
    low, high = sorted(axes.get_ylim())
    boxes = [
        label.get_window_extent()
        for label, at in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
        if low <= at <= high
    ]
    boxes.sort(key=lambda box: box.y0)
    assert len(boxes) >= 2 and all(one.y1 < other.y0 for one, other in itertools.pairwise(boxes))


def test_limits_never_cut_the_better_side() -> None:
    overfits = np.array([0.05, 0.11, 0.12, 0.12, 0.13, 0.13, 0.13, 0.14, 0.14, 0.14])
    low, high = limits([(overfits, overfits, overfits)], higher=False)
    assert low < 0.05 and high > 0.14
    low, high = limits([(-overfits, -overfits, -overfits)], higher=True)
    assert high > -0.05 and low < -0.14


def test_limits_let_the_first_fifth_fall_below() -> None:
    mean = np.array([0.1, 0.2, 0.8, 0.85, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    low, high = limits([(mean, mean, mean), (np.full(3, np.nan),) * 3])
    assert 0.7 < low < 0.8 and 0.9 < high < 0.95
    low, high = limits([(-mean,) * 3], higher=False)
    assert -0.95 < low < -0.9 and -0.8 < high < -0.7
    low, _ = limits([(np.array([0.893, 0.9, 0.9, 0.9, 0.95]),) * 3])
    assert low < 0.893  # nothing is cut for a little
    _, high = limits([(mean, mean, mean + 0.3)])
    assert high > 1.2  # nor is a band


def test_file_names_stay_in_the_folder(make_run, tmp_path: Path) -> None:
    for number, task in enumerate(("../../etc", "a b/c", "..", "digits-mlp", "digits-mlp")):
        folder = make_run(tmp_path / str(number), "sgd", 0, batch_size=number)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"task": task}))
    names = stems(sections(read_runs(tmp_path)[0]))
    assert sorted(names) == ["a-b-c", "digits-mlp-1", "digits-mlp-2", "etc", "task"]
