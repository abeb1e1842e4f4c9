"""``arturo report``: what it prints and writes, how it says no, and that nothing from a file is taken for HTML."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arturo_lab import cli
from arturo_lab.report.page import as_json, escape, filled, plain
from arturo_lab.report.plots import curves_figure, limits, stems
from arturo_lab.report.sections import sections
from arturo_lab.runs.records import read_runs


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
    assert "91.00 ± 1.15" in out and "90.00 to 92.00" in out and "0.25" in out and "best" in out and err == ""
    assert [line.split(": ")[1] for line in out.splitlines()[-3:]] == [
        str(three / name) for name in ("figures/digits-mlp.png", "report.html", "summary.json")
    ]
    names = {path.name for path in (three / "figures").iterdir()}
    panels = ("", "-accuracy", "-train-loss", "-time")
    assert names == {f"digits-mlp{panel}.{kind}" for panel in panels for kind in ("png", "pdf")}
    assert (three / "figures" / "digits-mlp.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(three / "figures" / "digits-mlp-time.png") as picture:
        assert picture.width == 700


def test_page_holds_the_numbers(three: Path) -> None:
    assert report(three, "--no-figures", "--target", "0.8") == 0
    text = (three / "report.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in three.iterdir()) == ["digits-mlp", "report.html", "summary.json"]
    for said in (
        "91.00 ± 1.15",
        "90.00 to 92.00",
        "−10.00",
        "p = 0.25",
        "epochs to 80 %",
        "3 of 3 got there",
        "a &lt;fast&gt; one",
    ):
        assert said in text, said
    assert "at most 75 %" in text and "paired t-test over the seeds against the best, Holm" in text


def test_summary_holds_the_numbers(three: Path, make_run) -> None:
    make_run(three, "sgd", 3, status="diverged", done=4)
    assert report(three, "--no-figures", "--target", "0.8") == 0
    summary = json.loads((three / "summary.json").read_text())
    assert summary["command"] == f"arturo report {three} --target 0.8" and summary["environments"][0]["torch"] == "2.13.0"
    (task,) = summary["tasks"]
    assert {"task": "digits-mlp", "epochs": 8, "batch_size": 32, "seeds": [0, 1, 2, 3], "target": 0.8}.items() <= task.items()
    sgd, arturo = task["optimizers"]
    # 80, 81, 82: standard deviation 1, doubled standard error 2 / sqrt(3)
    assert sgd["test_accuracy"] == {"mean": pytest.approx(0.81), "doubled_error": pytest.approx(0.02 / 3**0.5, rel=1e-6)}
    assert sgd["test_accuracy_interval"] == [0.8, 0.82] and sgd["test_accuracy_by_seed"] == {"0": 0.8, "1": 0.81, "2": 0.82}
    assert sgd["runs"] == {"finished": 3, "diverged": 1, "unfinished": 0} and not sgd["best"] and arturo["best"]
    assert (sgd["p_against_best"], sgd["pairs"], sgd["behind_best"]) == (0.25, 3, pytest.approx(0.1))
    assert arturo["epochs_to_target"] == 4 and arturo["reached_target"] == 3
    assert sgd["seconds_per_epoch"] == pytest.approx(1.1) and sgd["settings"] == {"lr": 0.1}


def test_out_of_the_way(three: Path, tmp_path: Path) -> None:
    assert report(three, "--out", str(tmp_path / "deep" / "paper")) == 0
    assert sorted(path.name for path in (tmp_path / "deep" / "paper").iterdir()) == ["figures", "report.html", "summary.json"]
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
        (["nowhere"], "arturo: DIR: nowhere is not there"),
        (["."], "arturo: DIR: . holds no run folders"),
        ([".", "--target", "90"], "arturo: target: must be above 0 and at most 1, such as 0.9, got 90"),
        ([".", "--target", "nan"], "arturo: target: must be above 0 and at most 1"),
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
    assert all(address.startswith("#") for address in addresses)
    assert all(path.resolve().parent == (tmp_path / "figures").resolve() for path in (tmp_path / "figures").iterdir())


def test_as_json_survives_any_string() -> None:
    value = {"a": "</script><script>\u2028&", "b": [float("inf"), 1.5, None, True], "c": (1, 2)}
    text = as_json(value)
    assert "<" not in text and ">" not in text and "&" not in text
    assert json.loads(text) == {"a": value["a"], "b": [None, 1.5, None, True], "c": [1, 2]}
    assert plain({"x": float("nan"), "y": (1 / 3, 7, 1e-30 / 3)}) == {"x": None, "y": [0.3333333, 7, 3.333333e-31]}


def test_filled_does_not_fill_what_was_filled_in() -> None:
    parts = dict.fromkeys(("counts", "problems", "contents", "sections", "command"), escape("{{command}}"))
    assert filled("report.html", parts).count("{{command}}") == 5
    with pytest.raises(KeyError):
        filled("report.html", {})


# --- figures


def test_figure_draws_what_the_section_says(three: Path) -> None:
    (section,) = sections(read_runs(three)[0])
    accuracy, loss, time = curves_figure(section, ["accuracy", "train-loss", "time"]).axes
    sgd, arturo = section.variants
    assert [line.get_label() for line in accuracy.lines] == ["SGD", "arTuRO"]
    assert [line.get_color() for line in accuracy.lines] == [sgd.look.light, arturo.look.light]
    assert accuracy.lines[1].get_ydata().tolist() == [point.mean for point in arturo.curve("test_accuracy")]
    assert time.lines[1].get_xdata().tolist() == arturo.times and loss.get_yscale() == "log"
    band = accuracy.collections[1].get_paths()[0].vertices
    last = arturo.curve("test_accuracy")[-1]
    at_end = band[band[:, 0] == 8][:, 1]
    assert (min(at_end), max(at_end)) == pytest.approx((last.mean - last.doubled_error, last.mean + last.doubled_error))


def test_limits_let_the_first_fifth_fall_below() -> None:
    mean = np.array([0.1, 0.2, 0.8, 0.85, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    low, high = limits([(mean, np.zeros(10)), (np.full(3, np.nan), np.zeros(3))])
    assert 0.7 < low < 0.8 and 0.9 < high < 0.95


def test_file_names_stay_in_the_folder(make_run, tmp_path: Path) -> None:
    for number, task in enumerate(("../../etc", "a b/c", "..", "digits-mlp", "digits-mlp")):
        folder = make_run(tmp_path / str(number), "sgd", 0, batch_size=number)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"task": task}))
    names = stems(sections(read_runs(tmp_path)[0]))
    assert sorted(names) == ["a-b-c", "digits-mlp-1", "digits-mlp-2", "etc", "task"]
