"""``arturo reproduce`` from the first training to the last file, at a scale that takes seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.scales import SCALES, Scale
from arturo_lab.pool import workers
from arturo_lab.runs.share import Share

TINY = Scale(
    "for tests",
    tasks={"digits-mlp": Share(epochs=2, subset=96)},
    seeds=[0, 1],
    timing={"digits-mlp": Share(epochs=2, subset=64)},
    rounds=1,
    optimizers=("sgd", "arturo"),
    threads=1,
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "tiny", TINY)
    monkeypatch.setenv("COLUMNS", "120")
    for name, artefact in list(ARTEFACTS.items()):
        monkeypatch.setitem(ARTEFACTS, name, replace(artefact, tasks=("digits-mlp",)))


def reproduce(name: str, out: Path, *options: str) -> int:
    return cli.main(["reproduce", name, "--scale", "tiny", "--out", str(out), *options])


def test_table_then_curves_of_the_same_runs_then_timing_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce("table1", tmp_path, "--jobs", "2") == 0
    out = capsys.readouterr().out
    runs = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "digits-mlp").iterdir())
    assert runs == ["arturo-seed0", "arturo-seed1", "sgd-seed0", "sgd-seed1"]
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    numbers = json.loads((tmp_path / "table1.json").read_text())
    for entry in numbers["rows"]:
        mean, error = (100 * entry[key] for key in ("test_accuracy", "test_accuracy_doubled_error"))
        assert f"{mean:.2f} ± {error:.2f}" in text and f"{mean:.2f} ± {error:.2f}" in out
    assert numbers["missing_runs"] == 0 and "missing" not in text
    assert (
        "Made by `arturo reproduce table1 --scale tiny`" in text and "| digits-mlp | 2 | 96 | 32 | 0, 1 | sgd arturo |" in text
    )
    assert "- digits-mlp: 2 epochs instead of 25, 96 of 1,437 training images.\n- digits-mlp is not in the paper." in text
    assert "- 2 seeds instead of 10." in text and str(tmp_path) not in text

    with monkeypatch.context() as patch:
        patch.setattr(workers.Worker, "start", lambda *arguments: pytest.fail("nothing was left to train"))
        assert reproduce("curves", tmp_path) == 0
        assert reproduce("train-loss", tmp_path, "--tasks", "digits-mlp") == 0
    assert "![Test accuracy over epochs" in (tmp_path / "curves.md").read_text(encoding="utf-8")
    assert "--scale tiny --tasks digits-mlp`" in (tmp_path / "train-loss.md").read_text(encoding="utf-8")
    for name in ("curves", "train-loss"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert all(len(entry["mean"]) == 2 for entry in json.loads((tmp_path / f"{name}.json").read_text())["rows"])

    assert reproduce("timing", tmp_path, "--jobs", "2") == 0
    assert len(list((tmp_path / "timing" / "digits-mlp").iterdir())) == 2 and len(runs) == 4
    sgd, arturo = json.loads((tmp_path / "timing.json").read_text())["rows"]
    assert sgd["against_sgd"] == 1 and arturo["against_sgd"] == pytest.approx(
        arturo["seconds_per_epoch"] / sgd["seconds_per_epoch"]
    )
    assert 0 < arturo["optimizer_milliseconds_per_step"] < 1000 * arturo["seconds_per_epoch"] / 2


def test_on_another_machine(tmp_path: Path) -> None:
    """What a training runs on is in its config and on the page, and what changes the numbers is named as different."""
    assert reproduce("table1", tmp_path, "--amp", "bf16", "--threads", "2", "--channels-last") == 0
    for path in (tmp_path / "digits-mlp").glob("*/config.json"):
        config = json.loads(path.read_text())
        assert (config["amp"], config["threads"], config["channels_last"], config["compile"]) == ("bf16", 2, True, False)
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert "Made by `arturo reproduce table1 --scale tiny --threads 2 --amp bf16 --channels-last`" in text
    assert "- Forward pass and loss in bfloat16" in text


def test_from_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("table1", tmp_path, "--no-train") == 2
    assert capsys.readouterr().err == f"arturo: {tmp_path}: holds none of the 4 runs needed for table1\n"
    assert list(tmp_path.iterdir()) == []
    train = ["train", "digits-mlp", "--optimizer", "sgd", "--epochs", "2", "--subset", "96", "--threads", "1"]
    assert cli.main([*train, "--out", str(tmp_path)]) == 0
    assert reproduce("table1", tmp_path, "--no-train") == 0
    text = (tmp_path / "table1.md").read_text(encoding="utf-8")
    assert "**Incomplete: 3 of 4 runs are missing.**" in text and "| SGD | **" in text and "arTuRO |" not in text


def test_rows_seeds_and_epochs_of_ones_own(tmp_path: Path) -> None:
    """Every artefact takes them: an optimizer that the paper does not have can be a row of its table."""
    words = ["--optimizers", "sgd", "adaarturo", "--seeds", "3,", "--epochs", "1", "--subset", "64"]
    assert reproduce("table1", tmp_path, *words) == 0
    numbers = json.loads((tmp_path / "table1.json").read_text())
    assert [(row["optimizer"], row["paper_accuracy"]) for row in numbers["rows"]] == [("sgd", None), ("adaarturo", None)]
    (protocol,) = next(table["rows"] for table in numbers["tables"] if table["name"] == "protocol")
    assert protocol == {
        "task": "digits-mlp",
        "epochs": 1,
        "images": 64,
        "batch_size": 32,
        "seeds": "3",
        "optimizers": "sgd adaarturo",
    }
    command = "arturo reproduce table1 --scale tiny --optimizers sgd adaarturo --seeds 3, --epochs 1 --subset 64"
    assert numbers["command"] == command


def test_all_trains_every_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optimizers", "sgd", "arturo", "--seeds", "1", "--epochs", "2"]
    assert reproduce("all", tmp_path, *words) == 0
    out = capsys.readouterr().out
    assert "4 runs to train" in out  # two that six artefacts share, and two whose time is taken
    for name in ARTEFACTS:
        assert (tmp_path / f"{name}.md").exists() and (tmp_path / f"{name}.json").exists()
    assert len(list((tmp_path / "digits-mlp").iterdir())) == len(list((tmp_path / "timing" / "digits-mlp").iterdir())) == 2


def test_all_of_a_task_that_no_artefact_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce("all", tmp_path, "--tasks", "digits-cnn") == 2
    assert capsys.readouterr().err == "arturo: tasks: no artefact is about digits-cnn at --scale tiny\n"
