"""Optimizers and tasks from outside: those of docs/extending.md, run as a reader would."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arturo_lab import cli
from arturo_lab.commands.planning import Plan
from arturo_lab.data import loading
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers.catalog import OPTIMIZERS, OptimizerEntry
from arturo_lab.optimizers.settings import resolve
from arturo_lab.paper.artefacts import ARTEFACTS
from arturo_lab.paper.scales import SCALES, Scale
from arturo_lab.references import folder_name
from arturo_lab.report.sections import sections
from arturo_lab.report.sweep import curves
from arturo_lab.runs.collection import read_runs
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.plan import parse_overrides
from arturo_lab.runs.provenance import differences, made_with
from arturo_lab.runs.records import read_run
from arturo_lab.runs.run import open_run
from arturo_lab.runs.share import Share
from arturo_lab.tasks.catalog import TASKS
from arturo_lab.training.train import train
from arturo_lab.tuning.overview import NEEDED

GUIDE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.fixture(autouse=True)
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's two files in the current folder."""
    monkeypatch.chdir(tmp_path)
    signs, entry, sine = BLOCKS
    Path("signs.py").write_text(signs + entry)
    Path("sine.py").write_text(sine)
    return tmp_path


def finished(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob("result.json"))


def test_the_guides_optimizer_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(
            ["train", "digits-mlp", "--optimizer", "signs.py:Signs", "--set", "lr=0.003", "--epochs", "1", "--out", "runs"]
        )
        == 0
    )
    (folder,) = finished(Path("runs"))
    record = read_run(folder)
    assert folder.name.startswith("signs.Signs-seed0-") and record.config["optimizer"] == "signs.py:Signs"
    assert record.config["settings"] == {"lr": 0.003, "momentum": 0.9}
    assert record.result["test_accuracy"] > 0.5
    assert "Signs, seed 0" in capsys.readouterr().out


def compare(*options: str) -> int:
    command = "compare digits-mlp --optimizers adamw signs.py:Signs --seeds 2 --epochs 1 --out runs"
    return cli.main([*command.split(), "--set", "signs.py:Signs.lr=0.003", *options])


def test_the_guides_optimizer_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare() == 0
    folders = finished(Path("runs"))
    assert [folder.name.rpartition("-")[0] for folder in folders] == [
        "adamw-seed0",
        "adamw-seed1",
        "signs.Signs-seed0",
        "signs.Signs-seed1",
    ]
    assert "Signs" in capsys.readouterr().out and Path("runs/report.html").exists()


def test_tasks_of_two_kinds_in_one_report(capsys: pytest.CaptureFixture[str]) -> None:
    command = "compare digits-mlp sine.py:TASK --optimizers adamw signs.py:Signs --seeds 2 --epochs 1 --out runs"
    assert cli.main(command.split()) == 0
    tasks = json.loads(Path("runs/summary.json").read_text())["tasks"]
    assert [task["metric"]["better"] for task in tasks] == ["higher", "lower"]
    assert "sine.py:TASK" in capsys.readouterr().out and "test rmse" in Path("runs/report.html").read_text()


def test_the_guides_optimizer_is_a_row_of_table_1(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Scale("for tests", {"digits-mlp": Share(epochs=1, subset=96)}, [0], {}, 1, ("sgd",), threads=1)
    monkeypatch.setitem(SCALES, "tiny", tiny)
    monkeypatch.setitem(ARTEFACTS, "table1", replace(ARTEFACTS["table1"], tasks=("digits-mlp",)))
    assert cli.main(["reproduce", "table1", "--scale", "tiny", "--optimizers", "sgd", "signs.py:Signs", "--out", "runs"]) == 0
    assert "Signs" in Path("runs/table1.md").read_text(encoding="utf-8")


def test_the_guides_task_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "sine.py:TASK", "--optimizer", "adaarturo", "--out", "runs"]) == 0
    (folder,) = finished(Path("runs"))
    record = read_run(folder)
    assert folder.parent.name == "sine.TASK" and record.config["task"] == "sine.py:TASK"
    value = record.rows[-1]["test_rmse"]
    assert record.result["metric"] == {"name": "test_rmse", "unit": "", "better": "lower", "value": value}
    assert value == pytest.approx(record.result["test_loss"] ** 0.5) and value < 0.7
    assert "test_accuracy" not in record.result and "test rmse" in capsys.readouterr().out


def test_the_guides_optimizer_is_tuned_on_the_guides_task(capsys: pytest.CaptureFixture[str]) -> None:
    command = "tune sine.py:TASK --optimizer signs.py:Signs --protocol fair --trials 3 --folds 2 --test-seeds 1 --epochs 1"
    assert cli.main([*command.split(), "--space", "lr=1e-3:1e-1:log", "momentum=0:0.99"]) == 0
    stored = json.loads(Path("runs/tune/sine.TASK-signs.Signs.json").read_text())
    assert stored["search"]["space"] == {"lr": [1e-3, 0.1, "log"], "momentum": [0.0, 0.99, "linear"]}
    assert set(stored["settings"]) == {"lr", "momentum"} and stored["search"]["metric"]["better"] == "lower"
    rows = [json.loads(line) for line in Path("runs/tune/sine.TASK-signs.Signs/trials.jsonl").read_text().splitlines()]
    best = max(row["score"] for row in rows if row["state"] == "complete")
    assert stored["search"]["validation"]["mean"] == pytest.approx(-best) and best < 0  # the least error
    assert "validation rmse" in capsys.readouterr().out
    assert cli.main(["tune-report", "runs/tune/sine.TASK-signs.Signs.json", "--out", "found"]) == 0
    assert "Signs" in capsys.readouterr().out and [path.name for path in Path("found").glob("*.png")] == [
        "sine.TASK-best-after-k.png"
    ]
    found = "train sine.py:TASK --config runs/tune/sine.TASK-signs.Signs.json --out again"
    assert cli.main(found.split()) == 0 and len(finished(Path("again"))) == 1


def test_a_search_whose_optimizer_is_gone_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    how = dict.fromkeys(NEEDED)
    Path("found").mkdir()
    Path("found/trials.jsonl").touch()
    Path("found.json").write_text(json.dumps({"task": "digits-mlp", "optimizer": "gone.py:Signs", "search": how}))
    assert cli.main(["tune-report", "found.json"]) == 2
    assert capsys.readouterr().err == "arturo: FILE: found.json names what is not there: optimizer: gone.py does not exist\n"


def test_the_guides_task_is_swept_by_its_path(tmp_path: Path) -> None:
    command = ["sweep", f"{tmp_path}/sine.py:TASK", "--optimizers", "signs.py:Signs", "--lr", "1e-3:1e-2", "--points", "2"]
    assert cli.main([*command, "--epochs", "1", "--out", "runs"]) == 0
    written = {path.name for path in Path("runs").iterdir() if path.is_file()}
    assert written == {f"sweep-sine.TASK.{kind}" for kind in ("md", "json", "csv", "tex", "png", "pdf")}
    assert "| Signs |" in Path("runs/sweep-sine.TASK.md").read_text(encoding="utf-8")


def test_runs_under_way_of_the_guides_files_have_their_words(make_run, tmp_path: Path) -> None:
    Path("signs.py").write_text(Path("signs.py").read_text().replace('OptimizerEntry("Signs"', 'OptimizerEntry("Sign descent"'))
    for name in ("signs.py:SIGNS", "signs.py:Signs", "gone.py:Signs"):
        folder = make_run(tmp_path / "runs", folder_name(name), 0, task="sine.TASK", status="unfinished")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"task": "sine.py:TASK", "optimizer": name}))
    (section,) = sections(read_runs(tmp_path / "runs")[0])
    assert section.title == TASKS["sine.py:TASK"].title != "sine.py:TASK"
    assert (section.metric.name, section.metric.higher) == ("test_rmse", False)
    names = {variant.optimizer: variant.label for variant in section.variants}
    assert names == {"signs.py:SIGNS": "Sign descent", "signs.py:Signs": "Signs", "gone.py:Signs": "gone.py:Signs"}
    assert {curve.label for curve in curves(section)} == set(names.values())
    Path("sine.py").unlink()
    (section,) = sections(read_runs(tmp_path / "runs")[0])
    assert section.title == "sine.py:TASK" and section.metric.name == "test_accuracy"


def test_an_entry_of_a_file_says_more_than_a_class() -> None:
    entry = OPTIMIZERS["signs.py:SIGNS"]
    assert isinstance(entry, OptimizerEntry) and entry.warmup == 0.1
    config = RunConfig.for_task("digits-mlp", "signs.py:SIGNS")
    assert config.settings["lr"] == 3e-3 and config.lr_warmup == 0.1


def test_other_packages() -> None:
    assert resolve("torch.optim:Adagrad", "digits-mlp", 1)["lr"] == 0.01
    lion = resolve("po:Lion", "digits-mlp", 1)
    assert lion["betas"] == [0.9, 0.99] and OPTIMIZERS["po:Lion"].label == "Lion"
    assert OPTIMIZERS["po:AdaHessian"].create_graph and not OPTIMIZERS["po:Lion"].create_graph
    assert OPTIMIZERS["po:ScheduleFreeAdamW"].tests_other_weights


def test_entry_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed package: its metadata is a folder on the path."""
    info = tmp_path / "package" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[arturo_lab.optimizers]\nrprop = torch.optim:Rprop\nbroken = torch.optim:Nothing\n"
        "[arturo_lab.tasks]\nmine = arturo_lab.tasks.catalog:TASKS\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    assert OPTIMIZERS["rprop"].load() is torch.optim.Rprop
    with pytest.raises(ConfigError, match=r"^optimizer: cannot load the entry point broken = torch.optim:Nothing \("):
        _ = OPTIMIZERS["broken"]
    with pytest.raises(ConfigError, match=r"^task: mine must be an arturo_lab.tasks.task.Task, got Registry"):
        _ = TASKS["mine"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:Signs", "optimizer: nowhere.py does not exist"),
        ("signs.py:Sings", "optimizer signs.py: unknown name 'Sings'; did you mean Signs"),
        ("signs.py:", "optimizer: expected file.py:NAME or package.module:NAME, got 'signs.py:'"),
        ("signs.py:torch", "optimizer: signs.py:torch must be a torch.optim.Optimizer or an OptimizerEntry, got module"),
        ("torch.nn:Linear", "optimizer: torch.nn:Linear must be a torch.optim.Optimizer or an OptimizerEntry, got Linear"),
        ("no.such.module:Class", r"optimizer: cannot import no.such.module \(ModuleNotFoundError: No module named 'no'"),
        ("broken.py:Class", r"optimizer: cannot import .*broken.py \(ZeroDivisionError: division by zero\)"),
        ("po:Lionn", "optimizer pytorch_optimizer: unknown name 'Lionn'; did you mean"),
        ("po:Lookahead", "optimizer: the first argument of po:Lookahead must be params, got optimizer"),
        ("", "optimizer: unknown name ''"),
    ],
)
def test_what_is_wrong_is_said(name: str, message: str) -> None:
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=f"^{message}"):
        _ = OPTIMIZERS[name]


def test_required_arguments() -> None:
    Path("needy.py").write_text(
        "from torch.optim import SGD\n\n\nclass Needy(SGD):\n"
        "    def __init__(self, params, lr, momentum=0.5, odd=object()):\n        super().__init__(params, lr, momentum)\n"
    )
    with pytest.raises(ConfigError, match=r"^set: needy.py:Needy has no default for lr; give it one with lr=VALUE"):
        resolve("needy.py:Needy", "digits-mlp", 1)
    assert resolve("needy.py:Needy", "digits-mlp", 1, {"lr": 0.5}) == {"lr": 0.5, "momentum": 0.5}
    with pytest.raises(ConfigError, match=r"^set: unknown name 'momentun'; did you mean momentum"):
        resolve("needy.py:Needy", "digits-mlp", 1, {"lr": 0.5, "momentun": 1.0})


def test_an_argument_of_any_kind() -> None:
    """What is annotated ``Any`` takes words in place of numbers and the other way round; the constructor has the last word."""
    Path("any.py").write_text(
        "from __future__ import annotations\n"
        "from typing import Any\n"
        "from torch.optim import SGD\n\n\n"
        "class Mine(SGD):\n"
        "    def __init__(self, params, lr=0.1, rule: Any = 0.5, kind='x'):\n"
        "        if rule == 'wrong':\n"
        "            raise ValueError('no such rule')\n"
        "        super().__init__(params, lr)\n"
    )
    for value in ("cap", 0.25, True, None):
        assert resolve("any.py:Mine", "digits-mlp", 100, {"rule": value})["rule"] == value
    with pytest.raises(ConfigError, match=r"^set kind: must be a word, got 1"):
        resolve("any.py:Mine", "digits-mlp", 100, {"kind": 1})
    with pytest.raises(ConfigError, match=r"no such rule"):
        resolve("any.py:Mine", "digits-mlp", 100, {"rule": "wrong"})


def test_names_of_folders_and_settings() -> None:
    assert [folder_name(name) for name in ("a b/c.py:D", "x.y:Z", "adam")] == ["c.D", "x.y.Z", "adam"]
    assert parse_overrides(["a/b.py:C.lr=1.5", "po:Lion.lr=2"], ["a/b.py:C", "po:Lion"]) == {
        "a/b.py:C": {"lr": 1.5},
        "po:Lion": {"lr": 2},
    }
    first, second = (RunConfig.for_task("digits-mlp", name) for name in ("signs.py:Signs", "./signs.py:Signs"))
    assert first.folder.parts[0] == "digits-mlp" and first.key != second.key


# A result belongs to its code and data


def test_a_changed_step_is_noticed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare() == 0
    before = {folder.name: (folder / "metrics.jsonl").read_bytes() for folder in finished(Path("runs"))}
    source = Path("signs.py").read_text()

    Path("signs.py").write_text(
        source.replace("average.lerp_(", "# a comment\n                average.lerp_(").replace("Sign descent", "Steps")
    )
    capsys.readouterr()
    assert compare() == 0
    assert "reused: 4 of 4 runs" in capsys.readouterr().out  # a comment changes no number

    Path("signs.py").write_text(source.replace("average.sign()", "average.tanh()"))
    assert compare("--plan") == 0
    assert "trained again" in (out := capsys.readouterr().out) and "2 runs to train" in out
    assert compare("--plan", "--reuse") == 0
    assert "reused anyway" in (out := capsys.readouterr().out) and "nothing to train" in out
    assert compare("--reuse") == 0
    out = capsys.readouterr().out
    assert "2 runs of digits-mlp, Signs: optimizer was signs.py " in out and "reused anyway" in out
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "approved", lambda *rest: False)  # the user says no
        assert compare() == 0
    assert {folder.name: (folder / "metrics.jsonl").read_bytes() for folder in finished(Path("runs"))} == before

    assert compare() == 0
    out = capsys.readouterr().out
    assert "2 runs of digits-mlp, Signs: optimizer was signs.py " in out and "trained again" in out
    assert "reused: 2 of 4 runs" in out
    for folder in finished(Path("runs/digits-mlp")):
        if folder.name.startswith("before"):
            assert not (folder / "config.json").exists()
            assert (folder / "metrics.jsonl").read_bytes() == before[folder.parent.name]
        else:
            same = (folder / "metrics.jsonl").read_bytes() == before[folder.name]
            assert same == folder.name.startswith("adamw")
    assert len(finished(Path("runs"))) == 6


def test_a_changed_step_is_not_resumed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", "digits-mlp", "--optimizer", "signs.py:Signs", "--epochs", "2", "--out", "runs"]
    config = RunConfig.for_task("digits-mlp", "signs.py:Signs", epochs=2)
    with open_run(Path("runs"), config) as run, pytest.raises(KeyboardInterrupt):
        train(config, loading.load("digits"), run=run, stop=lambda: True)
    Path("signs.py").write_text(Path("signs.py").read_text().replace("average.sign()", "average.tanh()"))
    assert cli.main([*command, "--resume"]) == 2
    err = capsys.readouterr().err
    assert "made with other code, data or threads (optimizer was signs.py " in err and "--reuse" in err and err.count("\n") == 1
    assert cli.main([*command, "--resume", "--reuse"]) == 0
    environment = json.loads((Path("runs") / config.folder / "environment.json").read_text())
    (old,) = environment["made_before_with"]
    assert old["optimizer"] != environment["made_with"]["optimizer"] and old["data"] == environment["made_with"]["data"]

    Path("signs.py").write_text(Path("signs.py").read_text().replace("average.tanh()", "average.sin()"))
    assert cli.main(command) == 2 and "made with other code, data or threads" in capsys.readouterr().err
    assert cli.main([*command, "--reuse"]) == 0 and "already finished" in capsys.readouterr().out


def test_changed_data_threads_and_tasks_are_noticed() -> None:
    digits = loading.load("digits")
    config = RunConfig.for_task("sine.py:TASK", "adamw")
    now = made_with(config, digits.digest, threads=1)
    assert set(now) == {"data", "optimizer", "task", "laboratory", "threads"} and now["optimizer"].startswith("torch ")
    assert differences(now, now) == [] and differences({}, now) == []
    assert differences(now, made_with(config, digits.subset(100).digest, threads=2)) == [
        f"data was {digits.digest} and is {digits.subset(100).digest}",
        "threads was 1 and is 2",
    ]
    Path("sine.py").write_text(Path("sine.py").read_text().replace("torch.sin(2 * x)", "torch.sin(3 * x)"))
    (line,) = differences(now, made_with(config, digits.digest, threads=1))
    assert re.fullmatch(r"task was ([0-9a-f]{12}), sine.py [0-9a-f]{12} and is \1, sine.py [0-9a-f]{12}", line)


def test_sources_of_optimizers() -> None:
    def source(name: str) -> str:
        return str(made_with(RunConfig.for_task("digits-mlp", name), "", 1)["optimizer"])

    assert source("adamw") == f"torch {torch.__version__}"
    assert re.fullmatch(r"arturo [0-9a-f]{12}", source("adaarturo")) and source("adaarturo") == source("arturo")
    assert re.fullmatch(r"muon.py [0-9a-f]{12}, pytorch[_-]optimizer [0-9.]+", source("muon"))
    assert source("po:Lion") == source("lion")


def test_a_study_is_not_resumed_with_another_optimizer_of_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "tune",
        "sine.py:TASK",
        "--optimizer",
        "signs.py:Signs",
        "--protocol",
        "fair",
        "--folds",
        "2",
        "--test-seeds",
        "0",
        "--epochs",
        "1",
    ]
    assert cli.main([*command, "--space", "lr=1e-3:1e-1:log", "--trials", "1"]) == 0
    Path("signs.py").write_text(Path("signs.py").read_text().replace("average.sign()", "average.tanh()"))
    assert cli.main([*command, "--space", "lr=1e-3:1e-1:log", "--trials", "2"]) == 2
    assert "storage: it holds a study of another search (code is {'optimizer': 'signs.py " in capsys.readouterr().err
