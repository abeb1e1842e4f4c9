"""A study: dies at every call it makes to its database, and in the end every trial counts once."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine

from arturo_lab.errors import ConfigError, RunError
from arturo_lab.pool.status import RunStatus
from arturo_lab.runs.config import RunConfig
from arturo_lab.runs.share import Share
from arturo_lab.tuning import trial
from arturo_lab.tuning.outcome import TrialRow
from arturo_lab.tuning.protocols import Search
from arturo_lab.tuning.search import work
from arturo_lab.tuning.study import counted, fill, open_storage, slot_values
from arturo_lab.tuning.trial import Judged

SEARCH = Search("digits-mlp", "sgd", "fair", folds=2, seeds=1, share=Share(1, 32))
TRIALS = 2


class Died(BaseException):
    """kill -9, as far as the database can tell: nothing is written any more, not even by clean-up."""


def trainer(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
    """A score that follows from the configuration and the fold alone."""
    return [Judged(1 / (1 + float(c.settings["lr"])) - 0.01 * int(c.share.fold[0]), diverged=False) for c in configs]  # type: ignore


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, which take longer to make than a study."""
    path = tmp_path_factory.mktemp("empty") / "study.db"
    with open_storage(f"sqlite:///{path}", heartbeat=1):
        pass
    return path


def search(path: Path, trials: int = TRIALS, search: Search = SEARCH, **options: Any) -> list[TrialRow]:
    with open_storage(f"sqlite:///{path}", heartbeat=1) as storage:
        return work(storage, search, trials, options.pop("trainer", trainer), path.parent, prune=False, **options)


@contextmanager
def dying(at: int) -> Iterator[list[str]]:
    """Death at the ``at``-th statement that writes; the statements before. What was not committed is lost."""
    made: list[str] = []

    def count(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.split()[0] not in ("INSERT", "UPDATE", "DELETE"):
            return
        if len(made) >= at:
            raise Died
        made.append(" ".join(statement.split()[:3]))

    event.listen(Engine, "before_cursor_execute", count)
    try:
        yield made
    finally:
        event.remove(Engine, "before_cursor_execute", count)


def timeless(rows: list[TrialRow]) -> list[Any]:
    return [(row.slot, row.state, row.score, row.params) for row in rows]


def test_dies_at_every_write_and_loses_nothing(empty: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = search(Path(shutil.copy(empty, tmp_path / "whole")))
    assert [row.slot for row in whole] == ["0", "1"] and whole[0].params != whole[1].params
    for at in range(1000):
        (tmp_path / str(at)).mkdir()
        path = Path(shutil.copy(empty, tmp_path / str(at)))
        with dying(at) as made:
            try:
                search(path)
                break  # it lived through all of them
            except Died:
                pass
        with open_storage(f"sqlite:///{path}", heartbeat=1) as storage:
            rows = work(storage, SEARCH, TRIALS, trainer, tmp_path, prune=False)
            trials = storage.study(SEARCH).get_trials(deepcopy=False)
        assert timeless(rows) == timeless(whole), made
        assert all(trial.state.is_finished() for trial in trials), made
        over = [trial.user_attrs["slot"] for trial in trials if trial.state == TrialState.COMPLETE]
        assert sorted(over) == ["0", "1"], made
    assert len(made) > 25 and {statement.split()[0] for statement in made} >= {"INSERT", "UPDATE"}


def test_more_trials_later_and_no_more_when_done(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    first = search(path, trials=2)

    def untouchable(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
        raise AssertionError("trained again")

    assert search(path, trials=2, trainer=untouchable) == first
    assert timeless(search(path, trials=4))[:2] == timeless(first)


def test_another_search_under_the_same_name(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    search(path, trials=1)
    other = Search("digits-mlp", "sgd", "fair", folds=3, seeds=1, share=Share(1, 32))
    with pytest.raises(ConfigError, match=r"^storage: .* \(folds is 2 there and 3 here\)"):
        search(path, search=other)


def test_two_fillers_make_one_trial_count(empty: Path, tmp_path: Path) -> None:
    """Both saw the slot empty: the second trial of the slot waits for ever."""
    path = Path(shutil.copy(empty, tmp_path))
    with open_storage(f"sqlite:///{path}", heartbeat=1) as storage:
        study, values = storage.study(SEARCH), slot_values(SEARCH, TRIALS, {})
        fill(study, SEARCH, values)
        study.enqueue_trial({"lr": 0.5}, user_attrs={"slot": "1"})
        assert fill(study, SEARCH, values)["1"].number == counted(study)["1"].number == 1
        rows = work(storage, SEARCH, TRIALS, trainer, tmp_path, prune=False)
        assert [row.slot for row in rows] == ["0", "1"]
        assert [t.state for t in study.get_trials(deepcopy=False)] == [TrialState.COMPLETE] * 2 + [TrialState.WAITING]


def test_a_worker_taken_for_dead_cannot_tell(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    trained: list[str] = []
    with open_storage(f"sqlite:///{path}", heartbeat=1) as storage:

        def slow(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
            trained.append(str(configs[0].share.fold))
            if len(trained) == 1:  # somebody else fails our trial meanwhile
                (running,) = storage.study(SEARCH).get_trials(deepcopy=False, states=(TrialState.RUNNING,))
                storage.fail(running._trial_id)
            return trainer(configs, out)

        rows = work(storage, SEARCH, 1, slow, tmp_path, prune=False)
        states = [trial.state for trial in storage.study(SEARCH).get_trials(deepcopy=False)]
    assert states == [TrialState.FAIL, TrialState.COMPLETE] and len(rows) == 1
    assert trained == ["1/2", "1/2", "2/2"]  # given up at the first fold, done again from the start


def test_diverged_is_worst_and_costs_one_fold(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    folds: list[str] = []

    def wild(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
        folds.append(str(configs[0].share.fold))
        return [Judged(0.1, diverged=len(folds) == 1)]

    rows = search(path, trials=2, trainer=wild)
    assert [(row.state, row.score) for row in rows] == [("diverged", 0.0), ("complete", 0.1)]
    assert folds == ["1/2", "1/2", "2/2"]


def test_several_folds_at_once(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    asked: list[list[str | None]] = []

    def watched(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
        asked.append([config.share.fold for config in configs])
        return trainer(configs, out)

    three = Search("digits-mlp", "sgd", "fair", folds=3, seeds=1, share=Share(1, 32))
    (row,) = search(path, trials=1, search=three, trainer=watched, at_once=2)
    assert asked == [["1/3", "2/3"], ["3/3"]] and len(row.scores) == 3


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_how_many_folds_at_once_decides_nothing(at_once: int, empty: Path, tmp_path: Path) -> None:
    """The second trial is hopeless after its first fold, diverges in the second and would have won by the last."""
    accuracy = {"first": (0.9, 0.91, 0.92, 0.9, 0.91), "second": (0.3, 0.3, 1.0, 1.0, 1.0)}
    trials: list[float] = []

    def made_up(configs: Sequence[RunConfig], out: Path) -> list[Judged]:
        trials.append(float(configs[0].settings["lr"]))  # type: ignore[arg-type]
        which = "first" if trials[0] == trials[-1] else "second"
        folds = [int(str(c.share.fold)[0]) for c in configs]
        return [Judged(accuracy[which][fold - 1], diverged=which == "second" and fold == 2) for fold in folds]

    five = Search("digits-mlp", "sgd", "fair", folds=5, seeds=1, share=Share(1, 32))
    with open_storage(f"sqlite:///{shutil.copy(empty, tmp_path)}", heartbeat=1) as storage:
        rows = work(storage, five, 2, made_up, tmp_path, prune=True, at_once=at_once)
    assert [(row.state, row.scores) for row in rows] == [("complete", accuracy["first"]), ("pruned", (0.3,))]


def test_what_was_quasi_random_stays_so(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    assert [row.quasi_random for row in search(path, trials=3)] == [True, False, False]
    later = search(path, trials=7)  # whose first three would have been of the sequence
    assert [row.quasi_random for row in later] == [True, False, False, False, False, False, False]


@pytest.mark.parametrize(("state", "error"), [("failed", RunError), ("stopped", KeyboardInterrupt)])
def test_runs_that_did_not_end(state: str, error: type[BaseException], tmp_path: Path) -> None:
    (config,) = SEARCH.configs({}, fold=1)
    with pytest.raises(error):
        trial.training(lambda *_, **__: [RunStatus(config, state, message="why")], 2, None, lambda: False)([config], tmp_path)


def test_runs_in_other_processes(tmp_path: Path) -> None:
    (config,) = SEARCH.configs({}, fold=1)
    ends = iter([RunStatus(config, "finished", 1.0, value=0.75), RunStatus(config, "diverged", 1.0)])
    train = trial.training(lambda configs, *_, **__: [next(ends) for _ in configs], 2, None, lambda: False)
    assert train([config] * 2, tmp_path) == [Judged(0.75, False), Judged(0.0, True)]


def test_quasi_random_first_and_the_same_shares_for_all() -> None:
    values = slot_values(SEARCH, 9, {"cross digits-cnn": {"lr": 0.1}})
    assert list(values) == [*map(str, range(9)), "cross digits-cnn"]
    assert [bool(point) for point in values.values()] == [True] * 3 + [False] * 6 + [True]
    other = Search("digits-mlp", "arturo", "fair", 2, 1, Share(1, 32))
    for slot, point in list(slot_values(other, 9, {}).items())[:3]:
        shares = [d.share(point[d.name]) for d in other.space.dimensions]
        assert shares == pytest.approx([d.share(values[slot][d.name]) for d in SEARCH.space.dimensions])
    again = Search("digits-mlp", "sgd", "fair", 2, 1, Share(1, 32), study=1)
    assert slot_values(again, 9, {})["0"] != values["0"]
    assert not any(slot_values(Search("digits-mlp", "sgd", "paper", 2, 1, Share(1, 32)), 9, {}).values())


def test_paper_search_with_a_gaussian_process(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    rows = search(path, trials=14, search=Search("digits-mlp", "sgd", "paper", 2, 1, Share(1, 32)))
    late = statistics.fmean(row.score for row in rows[11:])
    assert late > statistics.fmean(row.score for row in rows[:10])  # it has learnt that a small lr scores high


def test_one_process_at_a_time_on_sqlite(empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(empty, tmp_path))
    with (
        open_storage(f"sqlite:///{path}", heartbeat=1),
        pytest.raises(ConfigError, match="SQLite supports one process at a time"),
    ):
        search(path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "is an in-memory database"),
        ("nonsense", "storage: cannot open nonsense"),
        ("nodb://host/x", "storage: cannot open nodb://host/x"),
        ("postgresql+psycopg://nobody@127.0.0.1:1/none", "storage: cannot open"),
    ],
)
def test_bad_storage(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), open_storage(url, heartbeat=1):
        pass
