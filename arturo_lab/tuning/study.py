"""A study in Optuna's storage that survives the death of any worker at any point.

A study has *slots*, one for each trial asked for: ``"0"``, ``"1"``, ... and one for each configuration of another task to be
cross-evaluated. A trial belongs to a slot (its user attribute). Of a slot's trials that have not failed the first one counts,
and no other. From that follows all of it:

* A worker that dies leaves a running trial behind. It is failed, and its slot is given a new trial with the same values.
* Whoever dies between the two, or does it at the same time as somebody else, does no harm: a slot without a trial is
  filled by the next one to look, and a second trial of a slot does not count and is never run.
* A live worker that was considered dead cannot report its result: a failed trial takes none.

SQLite has no atomic claim (Optuna says so: one process at a time). There the worker holds a lock on the file, which the
kernel drops when it dies, so whatever runs is dead. Other databases take any number of workers; each shows by a heartbeat
that it lives.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState
from scipy.stats import qmc  # type: ignore[import-untyped]
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from arturo_lab.errors import ConfigError
from arturo_lab.runs.lock import Locked, locked
from arturo_lab.tuning.protocols import PROTOCOLS, Search
from arturo_lab.tuning.pruner import FoldPruner

OVER = (TrialState.COMPLETE, TrialState.PRUNED)
BEATS_MISSED = 4  # missed: then a worker is considered dead


@dataclass(frozen=True)
class Storage:
    """An open database."""

    rdb: RDBStorage
    heartbeat: int | None  # seconds; None: this process is alone

    def study(self, search: Search) -> optuna.Study:
        """The study of a search, created if it does not exist. One of another search under that name is an error."""
        with quiet():
            study = optuna.create_study(
                storage=self.rdb, study_name=search.name, direction="maximize", pruner=FoldPruner(), load_if_exists=True
            )
        wanted = search.identity()
        stored = study.user_attrs.get("search")
        if stored is None:
            study.set_user_attr("search", wanted)
        elif stored != wanted:
            keys = [key for key in {**stored, **wanted} if stored.get(key) != wanted.get(key)]
            differing = "; ".join(f"{key} is {stored.get(key)!r} there and {wanted.get(key)!r} here" for key in keys)
            raise ConfigError(f"storage: it holds a study of another search ({differing}); choose another --out or --storage")
        return study

    def release_dead(self, study: optuna.Study) -> None:
        """Fail the trials whose worker is gone."""
        if self.heartbeat is not None:
            with quiet():
                fail_stale_trials(study)
            return
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.fail(trial._trial_id)

    def fail(self, trial_id: int) -> None:
        """Give a trial up, so that its slot is filled again. One that is over stays as it is."""
        with suppress(UpdateFinishedTrialError):
            self.rdb.set_trial_state_values(trial_id, TrialState.FAIL)

    def claim(self, trial_id: int) -> bool:
        """Take a waiting trial. False: somebody else was faster."""
        self.rdb.record_heartbeat(trial_id)  # before: a running trial without one would never count as dead
        try:
            return self.rdb.set_trial_state_values(trial_id, TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    @contextmanager
    def beating(self, trial_id: int) -> Iterator[None]:
        """Show that the worker lives as long as the block lasts."""
        if self.heartbeat is None:
            yield
            return
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.heartbeat):
                with suppress(StorageInternalError, SQLAlchemyError):  # the database does not answer: try again
                    self.rdb.record_heartbeat(trial_id)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def open_storage(url: str, heartbeat: int) -> Iterator[Storage]:
    """The database at an SQLAlchemy URL. A SQLite file is created if missing, in a folder that exists; it takes one process."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with ExitStack() as stack:
        try:
            parsed = make_url(url)
            alone = parsed.get_backend_name() == "sqlite"
            if alone:
                if not parsed.database or parsed.database == ":memory:":
                    raise ConfigError(f"storage: {url} is an in-memory database, which would be lost at the end; use a file")
                path = Path(parsed.database)
                if not path.parent.is_dir():
                    raise ConfigError(f"storage: the folder {path.parent} of {url} does not exist; create it first")
                stack.enter_context(locked(path.with_name(path.name + ".lock")))
            rdb = _open_rdb(url, heartbeat)
        except Locked as error:
            raise ConfigError(
                f"storage: {error} is searching in {url}; SQLite supports one process at a time, "
                "--storage postgresql://... several"
            ) from error
        except (SQLAlchemyError, ImportError, StorageInternalError) as error:
            raise ConfigError(f"storage: cannot open {url} ({str(error).splitlines()[0]})") from error
        stack.callback(rdb.engine.dispose)
        yield Storage(rdb, None if alone else heartbeat)


def _open_rdb(url: str, heartbeat: int) -> RDBStorage:
    for _ in range(3):
        with quiet(), suppress(IntegrityError, ProgrammingError):  # another worker makes the tables at the same time
            return RDBStorage(url, heartbeat_interval=heartbeat, grace_period=BEATS_MISSED * heartbeat)
    with quiet():
        return RDBStorage(url, heartbeat_interval=heartbeat, grace_period=BEATS_MISSED * heartbeat)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's word on what it may change: the versions are pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def slot_values(search: Search, trials: int, crossed: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Every slot, and the values it starts with: points of a Sobol sequence, then {} (the sampler proposes), then the crossed.

    The sequence is scrambled by the number of the study and is the same for all optimizers: the same shares of each space.
    """
    n, dimensions = search.quasi_random(trials), search.space.dimensions
    sobol = qmc.Sobol(len(dimensions), scramble=True, rng=search.study)
    shares = sobol.random_base2(max(n - 1, 1).bit_length())[:n]  # a power of two: any other number unbalances it
    values = {str(i): search.space.point(tuple(map(float, share))) for i, share in enumerate(shares)}
    values |= {str(i): {} for i in range(n, trials)}
    return values | {slot: dict(point) for slot, point in crossed.items()}


def counted(study: optuna.Study) -> dict[str, FrozenTrial]:
    """The trial that counts for each slot: the first that has not failed."""
    first: dict[str, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.state != TrialState.FAIL and "slot" in trial.user_attrs:
            first.setdefault(trial.user_attrs["slot"], trial)
    return first


def fill(study: optuna.Study, search: Search, values: Mapping[str, Mapping[str, float]]) -> dict[str, FrozenTrial]:
    """Give every slot without a trial one: with the values of the one that failed, if it had them all. What counts now."""
    empty = values.keys() - counted(study).keys()
    if empty:
        given_up = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
        whole = [trial for trial in given_up if len(trial.params) == len(search.space.dimensions)]
        failed = {trial.user_attrs.get("slot"): trial for trial in whole}
        for slot in values:  # in their order
            if slot in empty:
                before = failed.get(slot)
                point = values[slot] if before is None else before.params
                sobol = slot.isdigit() and bool(point) if before is None else bool(before.user_attrs.get("quasi_random"))
                study.enqueue_trial(dict(point), user_attrs={"slot": slot, "quasi_random": sobol})
    trials = counted(study)
    return {slot: trials[slot] for slot in values}


def next_trial(storage: Storage, study: optuna.Study, search: Search, trials: Sequence[FrozenTrial]) -> Trial | None:
    """Claim the first of ``trials`` that waits; None if there is none."""
    for trial in trials:
        if trial.state == TrialState.WAITING and storage.claim(trial._trial_id):
            study.sampler = sampler(search, trial)
            claimed = Trial(study, trial._trial_id)
            claimed.set_user_attr("worker", os.getpid())
            return claimed
    return None


def sampler(search: Search, trial: FrozenTrial) -> BaseSampler:
    """The one that proposes a trial. Its seed follows from study and slot, so a resumed study proposes what it would have."""
    slot = str(trial.user_attrs["slot"])
    seed = 1_000_000 * search.study + (int(slot) if slot.isdigit() else 0)
    with quiet():
        if PROTOCOLS[search.protocol].sampler == "gp":
            return GPSampler(seed=seed)
        return TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=5)
