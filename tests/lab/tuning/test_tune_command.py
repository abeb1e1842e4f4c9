"""``arturo tune``: what it writes, that it looks at the test set once, and that a killed one can be resumed."""

from __future__ import annotations

import ast
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor

from arturo_lab import cli
from arturo_lab.commands import tune as tune_command
from arturo_lab.data import loading
from arturo_lab.optimizers.config_file import ConfigFile, read_config_file, write_config_file
from arturo_lab.paper.scales import SCALES
from arturo_lab.runs.share import Share
from arturo_lab.training import train
from arturo_lab.tuning import spaces
from arturo_lab.tuning.display import SearchDisplay
from arturo_lab.tuning.outcome import TrialRow, read_rows
from arturo_lab.tuning.overview import NEEDED, SearchResult, cross_table, winners_table
from arturo_lab.tuning.protocols import Search
from arturo_lab.tuning.result import winners_elsewhere
from arturo_lab.tuning.spaces import Dimension, Space

ROOT = str(Path(cli.__file__).parents[1])
SMALL = shlex.split("tune digits-mlp --optimizer sgd --protocol fair --trials 3 --folds 2 --epochs 1 --subset 96 --studies 1")


def tune(out: Path, *options: str) -> Path:
    assert cli.main([*SMALL, "--out", str(out), *options]) == 0
    return out


def shown(image: Tensor) -> bytes:
    return bytes(image.numpy())


def test_whole_search(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is evaluated while it searches is a training image; the test set is seen for the winner alone."""
    digits = loading.load("digits")
    training, test = set(map(shown, digits.train_inputs)), set(map(shown, digits.test_inputs))
    assert training.isdisjoint(test)
    looks: list[bool] = []
    real = train.evaluate

    def watched(model: Any, images: Tensor, *rest: Any) -> Any:
        seen = set(map(shown, images))
        assert seen <= training or seen == test
        looks.append(seen == test)
        return real(model, images, *rest)

    monkeypatch.setattr(train, "evaluate", watched)
    file = tune(tmp_path / "sgd.json", "--no-prune", "--test-seeds", "2")
    assert looks == [False] * 7 + [True] * 2  # when planning, 3 trials of 2 folds, then 2 seeds, one epoch each

    out = capsys.readouterr().out
    rows = read_rows(tmp_path / "sgd" / "trials.jsonl")
    best = max(rows, key=lambda row: row.score)
    found = read_config_file(file)
    assert [row.slot for row in rows] == ["0", "1", "2"] and all(len(row.scores) == 2 for row in rows)
    assert found.search["params"] == best.params and found.settings["lr"] == best.params["lr"]
    assert found.settings["momentum"] == 1 - best.params["1-momentum"]
    assert (found.task, found.epochs, found.subset) == ("digits-mlp", 1, 96)
    assert found.search["test"]["n"] == 2 and f"{100 * found.search['test']['mean']:.2f}" in out
    assert f"best: trial {best.slot}, validation accuracy {best.score:.2%}" in out
    names = {path.name for path in (tmp_path / "sgd").iterdir()}
    figures = {"history.png", "best-after-k.png", "parallel.png", "importances.png"}
    assert names == figures | {"study.db", "study.db.lock", "trials.jsonl", "test"}  # nothing is left of the trials

    looks.clear()
    tune(file, "--no-prune", "--test-seeds", "2")
    assert looks == [] and read_config_file(file).search["test"] == found.search["test"]

    assert cli.main(["train", "digits-mlp", "--config", str(file), "--out", str(tmp_path / "runs")]) == 0
    assert f"{found.search['test']['values'][0]:.2%}" in capsys.readouterr().out  # the same training


def test_another_winner_is_not_tested_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tune(tmp_path / "sgd.json", "--trials", "1")
    content = json.loads(file.read_text())
    content["search"]["test"]["params"]["lr"] /= 2  # as if another configuration had won before
    file.write_text(json.dumps(content))
    tested, folders = content["search"]["test"], list((tmp_path / "sgd" / "test").rglob("config.json"))
    for _ in range(2):  # for good, not once
        capsys.readouterr()
        tune(file, "--trials", "1")
        assert (
            "the test set has been used for an earlier winner" in (out := capsys.readouterr().out)
            and "test accuracy" not in out
        )
        assert read_config_file(file).search["test"]["values"] == tested["values"]
        assert list((tmp_path / "sgd" / "test").rglob("config.json")) == folders
    assert cli.main(["tune-report", str(file), "--out", str(tmp_path)]) == 0
    assert "| of an earlier winner |" in (tmp_path / "tuning.md").read_text()


def test_a_result_of_another_search_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tune(tmp_path / "sgd.json", "--trials", "1", "--test-seeds", "0")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for options, words in (
        ("--optimizer adam", "optimizer is 'sgd' there and 'adam' here"),
        ("--protocol paper", "protocol is 'fair' there and 'paper' here"),
    ):
        assert cli.main([*SMALL, "--out", str(file), *options.split()]) == 2
        assert f"out: {file} holds another search ({words}); choose another --out" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_studies_and_cross_evaluation(tmp_path: Path) -> None:
    other = tune(tmp_path / "other.json", "--trials", "1", "--test-seeds", "0")
    content = json.loads(other.read_text())
    assert content["search"]["test"] is None
    content |= {"task": "digits-cnn"}
    other.write_text(json.dumps(content))
    options = ["--trials", "2", "--studies", "2", "--test-seeds", "0", "--cross", str(other)]
    found = read_config_file(tune(tmp_path / "sgd.json", *options)).search
    rows = read_rows(tmp_path / "sgd" / "trials.jsonl")
    assert [(row.study, row.slot) for row in rows] == [(0, "0"), (0, "1"), (0, rows[2].slot), (1, "0"), (1, "1")]
    assert (
        rows[2].slot.startswith("cross digits-cnn ")
        and rows[2].params == content["search"]["params"]
        and rows[2].scores == rows[0].scores
    )  # the same point here
    assert found["studies"] == 2 and found["trials"] == 4 and len(found["between_studies"]["best"]) <= 2
    assert found["crossed"] == [{"from": "digits-cnn", "score": rows[2].score, "state": rows[2].state}]

    assert cli.main(["tune-report", str(tmp_path / "sgd.json"), "--out", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report" / "tuning.md").read_text()
    assert f"{100 * found['validation']['mean']:.2f}" in text and "not yet" in text and found["command"] in text
    assert "| SGD | digits-cnn |" in text and "2 independent studies of 2 trials" in text
    figures = {path.name for path in (tmp_path / "report").glob("*.png")}
    assert figures == {"digits-mlp-best-after-k.png", "digits-mlp-studies.png"}


def test_divergence_does_not_stop_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = Space((Dimension("lr", 1e20, 1e25, "diverges"),), lambda x: {"lr": x["lr"]})
    monkeypatch.setitem(spaces.SPACES["fair"], "sgd", wild)
    assert cli.main([*SMALL, "--out", str(tmp_path / "sgd.json")]) == 2
    assert "trials: every one of 3 diverged" in capsys.readouterr().err
    rows = read_rows(tmp_path / "sgd" / "trials.jsonl")
    assert [(row.state, row.score) for row in rows] == [("diverged", 0.0)] * 3


def test_killed_and_gone_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arturo_lab", *SMALL, "--epochs", "10", "--test-seeds", "0", "--no-prune"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "sgd.json")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:2] == ["0", "0"]:  # the first trial is over
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "sgd.json").exists()
    tune(tmp_path / "sgd.json", "--epochs", "10", "--test-seeds", "0", "--no-prune")
    tune(tmp_path / "whole.json", "--epochs", "10", "--test-seeds", "0", "--no-prune")
    parts, whole = (read_rows(tmp_path / name / "trials.jsonl") for name in ("sgd", "whole"))
    assert [(row.slot, row.params, row.scores) for row in parts] == [(row.slot, row.params, row.scores) for row in whole]


def test_ctrl_c_frees_the_trial_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real, calls = train.evaluate, 0

    def interrupting(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    command = [*SMALL, "--epochs", "2", "--test-seeds", "0", "--out", str(tmp_path / "sgd.json")]
    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", interrupting)
        assert cli.main(command) == 130
    assert f"to resume: arturo {' '.join(command)}" in capfd.readouterr().err
    assert cli.main(command) == 0
    assert len(read_rows(tmp_path / "sgd" / "trials.jsonl")) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--trials 0", "trials: must be an integer >= 1, got 0"),
        ("--folds 1", "folds: must be an integer >= 2, got 1"),
        ("--seeds 0", "seeds: must be an integer >= 1, got 0"),
        ("--studies 0", "studies: must be an integer >= 1, got 0"),
        ("--test-seeds -1", "test-seeds: must be an integer >= 0, got -1"),
        ("--heartbeat 0", "heartbeat: must be an integer >= 1, got 0"),
        ("--optimizer arturo-ggn", "optimizer: arturo-ggn has no search space under --protocol fair"),
        ("--protocol far", "protocol: unknown name 'far'; did you mean fair"),
        ("--out found", "out: must be the name of a file that ends with .json, got found"),
        ("--out found.txt", "out: must be the name of a file that ends with .json, got found.txt"),
        ("--cross none.json", "cross: none.json does not exist; name what `arturo tune --out` wrote"),
        ("--dashboard", "dashboard: needs optuna-dashboard; to install it: pip install optuna-dashboard"),
    ],
)
def test_mistakes(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    assert cli.main([*SMALL, *options.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"arturo: {message}") and err.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_without_optuna_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(SMALL) == 2
    assert "pip install 'arturo[tune]'" in capsys.readouterr().err


def test_the_laboratory_does_without_optuna() -> None:
    """What is imported with the command `arturo` is free of it; the rest is imported when a search begins."""
    lab = Path(cli.__file__).parent
    for path in (*(lab / "commands").glob("*.py"), lab / "tuning" / "protocols.py", lab / "tuning" / "spaces.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # of the module itself, not of its functions
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] != "optuna", path
                assert not name.startswith("arturo_lab.tuning") or name.split(".")[-1] in ("protocols", "spaces"), path


def test_scale_is_that_of_reproduce() -> None:
    def lengths(words: str) -> tuple[int | None, int | None]:
        _, options = cli.parse(words.split())
        (search,) = tune_command.searches(options)
        return search.share.epochs, search.share.subset

    share = SCALES["cpu"].tasks["fmnist-cnn"]
    assert lengths("tune fmnist-cnn") == (120, None)
    assert lengths("tune fmnist-cnn --scale cpu") == (share.epochs, share.subset)
    assert lengths("tune fmnist-cnn --scale cpu --epochs 2 --subset 500") == (2, 500)


def test_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    served: list[str] = []
    module = types.SimpleNamespace(run_server=lambda url, host, port: served.append(url))
    monkeypatch.setitem(sys.modules, "optuna_dashboard", module)  # type: ignore[arg-type]
    monkeypatch.setattr("webbrowser.open", lambda address: None)
    command = [*SMALL, "--out", str(tmp_path / "sgd.json"), "--dashboard"]
    assert cli.main(command) == 2 and "no study at" in capsys.readouterr().err
    (tmp_path / "sgd").mkdir()
    (tmp_path / "sgd" / "study.db").touch()
    assert cli.main(command) == 0
    assert served == [f"sqlite:///{tmp_path / 'sgd' / 'study.db'}"]
    shutil.rmtree(tmp_path / "sgd")


def test_cross_must_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how: dict[str, Any] = {"protocol": "fair", "params": {"lr": 0.1, "1-momentum": 0.1, "weight_decay": 1e-4}}
    content: dict[str, Any] = {"task": "digits-cnn", "optimizer": "sgd", "settings": {}, "search": how}
    for change, message in (
        ({"optimizer": "adam"}, "is 'adam', of this search 'sgd'"),
        ({"search": {**how, "protocol": "paper"}}, "cross: protocol of"),
        ({"search": {**how, "params": {"lr": 0.1}}}, "cross: values of"),
        ({"search": {**how, "params": {**how["params"], "lr": 50.0}}}, "is outside of 0.001 to 1"),
        ({"search": 3}, "must be an object, got 3"),
        ({"task": "digits-mlp"}, "is of digits-mlp, and so is this search"),
    ):
        (tmp_path / "other.json").write_text(json.dumps({**content, **change}))
        assert cli.main([*SMALL, "--out", str(tmp_path / "x.json"), "--cross", str(tmp_path / "other.json")]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "other.json").write_text(json.dumps(content))
    (tmp_path / "third.json").write_text(json.dumps(content))
    files = [str(tmp_path / name) for name in ("other.json", "third.json")]
    assert cli.main([*SMALL, "--out", str(tmp_path / "x.json"), "--cross", *files]) == 2
    assert f"cross: {files[1]} is of digits-cnn, and so is {files[0]}" in capsys.readouterr().err


def test_another_winner_elsewhere_is_judged_anew(tmp_path: Path) -> None:
    search = Search("digits-mlp", "sgd", "fair", 2, 1, Share(1, 32))
    slots = []
    for lr in (0.1, 0.2, 0.1):
        params = {"lr": lr, "1-momentum": 0.1, "weight_decay": 1e-4}
        write_config_file(tmp_path / "a.json", ConfigFile("sgd", "digits-cnn", search={"protocol": "fair", "params": params}))
        slots += winners_elsewhere([tmp_path / "a.json"], search)
    assert slots[0] == slots[2] != slots[1]


def test_report_of_searches_that_do_not_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [tune(tmp_path / f"{n}.json", "--trials", str(n), "--optimizer", o) for n, o in ((1, "sgd"), (2, "adam"))]
    report = ["tune-report", "--out", str(tmp_path / "report")]
    assert cli.main([*report, *map(str, found)]) == 2
    assert "FILE: the searches on digits-mlp cannot be compared: trials is 1 for sgd and 2 for adam" in capsys.readouterr().err
    assert cli.main([*report, str(found[0]), str(found[0])]) == 2
    assert "FILE: two searches of sgd on digits-mlp" in capsys.readouterr().err
    content = json.loads(found[0].read_text())
    content["search"] |= {"studies": 2, "between_studies": None}  # but one of the studies diverged in all its trials
    found[0].write_text(json.dumps(content))
    assert cli.main([*report, str(found[0])]) == 0
    found[0].write_text(json.dumps(content | {"search": {"validation": 0.5}}))
    assert cli.main([*report, str(found[0])]) == 2 and "is not what `arturo tune` wrote" in capsys.readouterr().err


def test_small_losses_have_their_figures() -> None:
    how = dict.fromkeys(NEEDED, 0) | {"studies": 2, "params": {"lr": 0.1}, "edges": [], "test": None, "folds": 2, "seeds": 1}
    how |= {"between_studies": {"best": [-0.00123, -0.00456]}, "validation": {"mean": 0.00123, "doubled_error": None}}
    how |= {"crossed": [{"from": "rosenbrock", "score": -0.00789, "state": "complete"}]}
    row = TrialRow(0, "0", "complete", -0.00123, (-0.00123,), {"lr": 0.1}, seconds=1.0)
    search = SearchResult(ConfigFile("sgd", "diabetes-mlp", search=how), [row])
    (cells,) = winners_table([search]).rows
    assert cells[2].text == "0.00123, 0.00456 (sd 0.002355)"
    assert [cells[2].text for cells in cross_table([search]).rows] == ["0.00123", "0.00789"]


@pytest.mark.parametrize(
    "words",
    [
        "tune digits-mlp --optimizer adaarturo --space lr=1e-2:1e-1:log --trials 3 --folds 2 "
        "--studies 1 --test-seeds 0 --protocol fair --out x.json",
        "sweep digits-mlp --optimizers adaarturo --lr 1e-2:1e-1",
    ],
    ids=["tune", "sweep"],
)
def test_a_large_lr_is_commented_once_at_most(words: str, tmp_path: Path) -> None:
    """Every one of several trainings has one here. The rate of a sweep that is measured may be said."""
    command = [sys.executable, "-m", "arturo_lab", *words.split(), "--epochs", "1", "--subset", "96"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ROOT}
    )
    assert done.stderr.count("for the length of AdaArturo's steps") <= 1


def test_every_line_says_how_much_time_is_left() -> None:
    """Also in a log file, where no bar moves."""
    screen = io.StringIO()
    rows = [
        TrialRow(0, str(i), "complete", 0.5, (0.5,), {"lr": 0.1}, seconds=seconds) for i, seconds in enumerate((60.0, 120.0))
    ]
    with SearchDisplay("title", 4, Console(file=screen, force_terminal=False, width=120)) as display:
        display.on_trials(rows[:1], "")
        display.on_trials(rows, "")
    _, heading, *lines = screen.getvalue().splitlines()
    at = heading.split().index("left")
    assert [line.split()[at] for line in lines] == ["0:03:00", "0:03:00"]  # three of 60 s, then two of 90 s
