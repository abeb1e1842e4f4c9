"""A worker: it takes trials of a study until all of them are over, whoever runs them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from arturo_lab.tasks.catalog import TASKS
from arturo_lab.tuning.outcome import TrialRow
from arturo_lab.tuning.protocols import Search
from arturo_lab.tuning.study import OVER, Storage, counted, fill, next_trial, slot_values
from arturo_lab.tuning.trial import Trainer, judge

PATIENCE = 0.5  # seconds between two looks at what other workers do


def work(
    storage: Storage,
    search: Search,
    trials: int,
    trainer: Trainer,
    scratch: Path,
    *,
    prune: bool,
    at_once: int = 1,
    crossed: Mapping[str, Mapping[str, float]] | None = None,
    on_trials: Callable[[list[TrialRow], str], None] = lambda rows, running: None,
) -> list[TrialRow]:
    """Run trials until ``trials`` of them and the ``crossed`` ones are over. All rows, in the order of the slots.

    Args:
        storage: where the study is.
        search: what is searched.
        trials: how many configurations; a study that has fewer is resumed, one that has more is left alone.
        trainer: trains the runs of a fold.
        scratch: where run folders are as long as their trial lasts.
        prune: whether hopeless configurations are given up early.
        at_once: so many folds go to the trainer together.
        crossed: configurations that won elsewhere, to be judged like the others.
        on_trials: told what is over and what is being done.
    """
    study = storage.study(search)
    values = slot_values(search, trials, crossed or {})
    if storage.heartbeat is None:
        storage.release_dead(study)
    while True:
        if storage.heartbeat is not None:
            storage.release_dead(study)
        slots = fill(study, search, values)
        rows = rows_of(study, search, list(values))
        on_trials(rows, "")
        trial = next_trial(storage, study, search, list(slots.values()))
        if trial is None:
            if all(slot.state in OVER for slot in slots.values()):
                return rows
            on_trials(rows, "waiting for the trials of other workers")
            time.sleep(PATIENCE)
            continue
        label = f"trial {trial.user_attrs['slot']}"

        def on_fold(fold: int, scores: list[float], rows: list[TrialRow] = rows, label: str = label) -> None:
            on_trials(rows, f"{label}, fold {fold} of {search.folds}: {statistics.fmean(scores):.2%}")

        on_trials(rows, label)
        try:
            with storage.beating(trial._trial_id):
                judge(trial, search, trainer, scratch, prune, at_once, on_fold)
        except BaseException:  # Ctrl-C, a full disk, a defect: the slot is free again, at once
            storage.fail(trial._trial_id)
            raise


def rows_of(study: optuna.Study, search: Search, slots: list[str]) -> list[TrialRow]:
    """The trials that are over and count, as plain data."""
    trials = counted(study)
    return [row(search, trials[slot]) for slot in slots if slot in trials and trials[slot].state in OVER]


def row(search: Search, trial: FrozenTrial) -> TrialRow:
    scores = tuple(trial.intermediate_values[step] for step in sorted(trial.intermediate_values))
    diverged = bool(trial.user_attrs.get("diverged"))
    state = "diverged" if diverged else "pruned" if trial.state == TrialState.PRUNED else "complete"
    score = TASKS[search.task].metric.worst if diverged else statistics.fmean(scores)
    taken = trial.duration.total_seconds() if trial.duration is not None else 0.0
    slot, quasi_random = trial.user_attrs["slot"], bool(trial.user_attrs.get("quasi_random"))
    return TrialRow(search.study, slot, state, score, scores, dict(trial.params), quasi_random, round(taken, 2))
