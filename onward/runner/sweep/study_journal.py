"""The study of a sweep: Optuna's, in a journal file that survives a kill at any moment."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from onward.errors import OptionError, PackageMissing
from onward.graph.paths import writing

if sys.platform != "win32":
    import fcntl

JOURNAL = "trials.journal"
INTERRUPTED_MARK = "interrupted"  # the user attribute of a trial that is tried again
_STUDY = "sweep"
_LOCK_SUFFIX = ".lock"  # of Optuna's lock file

PruneName = Literal["median", "hyperband", "none"]


def import_optuna() -> Any:
    """The package optuna."""
    try:
        import optuna
    except ImportError:
        raise PackageMissing(
            "a sweep searches with optuna, which is not installed\n"
            "install it with: pip install 'onward[sweep]'"
        ) from None
    return optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Optuna without its lines for each trial."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def open_study(folder: Path, prune: PruneName) -> Any:
    """The study of a sweep's folder; it minimises, whatever is monitored."""
    optuna = import_optuna()
    backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
    with writing(folder / JOURNAL):
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=_STUDY,
            direction="minimize",
            pruner=_make_pruner(optuna, prune),
            load_if_exists=True,
        )


def _make_pruner(optuna: Any, prune: PruneName) -> Any:
    if prune == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
    return optuna.pruners.HyperbandPruner() if prune == "hyperband" else optuna.pruners.NopPruner()


def seed_sampler(study: Any, seed: int) -> None:
    """A sampler for the next trial: a function of the seed and of the number of trials.

    A resumed sweep so continues the sequence, where one seed would repeat its beginning.
    """
    number = len(study.get_trials(deepcopy=False))
    sampler = import_optuna().samplers.TPESampler(seed=(seed * 1_000_003 + number) % 2**32)
    study.sampler = sampler


@contextlib.contextmanager
def owning(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder: one sweep at a time asks for trials. Repairs what a kill has left."""
    journal = folder / JOURNAL
    with writing(journal):
        opened = open(journal, "ab+")  # noqa: SIM115
    with opened as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OptionError(
                    f"another process runs the sweep in {folder}\n"
                    "wait for it, or give another --folder"
                ) from None
        _cut_incomplete_line(file)
        with contextlib.suppress(FileNotFoundError):  # its owner was killed
            os.unlink(f"{journal}{_LOCK_SUFFIX}")
        yield


def _cut_incomplete_line(file: Any) -> None:
    """Remove what a killed process has written of its last line."""
    file.seek(0)
    content = file.read()
    if content and not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)


def retry_running(study: Any) -> int:
    """Fail the trials that a killed sweep has left running, and queue them again."""
    states = import_optuna().trial.TrialState
    running = study.get_trials(deepcopy=False, states=(states.RUNNING,))
    for frozen in running:
        retry(study, import_optuna().trial.Trial(study, frozen._trial_id))
    return len(running)


def retry(study: Any, trial: Any) -> None:
    """Fail a trial that was interrupted, and queue another one with its values."""
    states = import_optuna().trial.TrialState
    trial.set_user_attr(INTERRUPTED_MARK, True)
    waiting = study.get_trials(deepcopy=False, states=(states.WAITING,))
    if trial.params and all(each.system_attrs["fixed_params"] != trial.params for each in waiting):
        study.enqueue_trial(trial.params)
    study.tell(trial, state=states.FAIL)
