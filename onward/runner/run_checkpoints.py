"""Checkpoints of a run: the session's state, the position in the data, the callbacks' states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from onward.checkpoints.disk import DISK
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.sharded.save_folders import list_saves
from onward.errors import CheckpointMismatch
from onward.lazy import LazyModule
from onward.message_text import list_names
from onward.runner.callback import Callback
from onward.runner.events import Evaluation
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run import Run, Saving
from onward.runner.run_folder import RunFolder
from onward.runner.stored_states import (
    FirstProcessStates,
    SavedState,
    StoredStates,
    WholeCheckpoints,
)
from onward.runner.team import ALONE, Team

# A higher layer, for runs that several processes have trained: docs/design/0013-layers.md
_sharded = LazyModule("onward.distributed.checkpoints.sharded_states")

_POSITION = ("step", "epoch", "batch", "micro", "evaluated", "seconds")
_KEY = "run"  # in the session's properties
# in it: the sizes of the data, what its columns have, and the learning rate that was given
_DATA, _DIGESTS, _RATE = "data", "digests", "learning_rate"


def open_checkpoints(
    folder: RunFolder, plan: TrainingPlan, keep: int, team: Team = ALONE
) -> StoredStates:
    """The checkpoints of a run: the newest ones and the best one."""
    better: Literal["higher", "lower"] = "higher" if plan.higher_is_better else "lower"
    shared: StoredStates | None = team.open_checkpoints(
        folder.checkpoints, keep=keep, better=better
    )
    if shared is not None:
        return shared
    files: WholeCheckpoints = Checkpoints(folder.checkpoints, keep=keep, keep_best=1, better=better)
    if list_saves(folder.checkpoints, DISK):  # a file would count as older
        files = _sharded.OneProcessCheckpoints(folder.checkpoints, keep=keep, better=better)
    return FirstProcessStates(files, team)


def begin_save(run: Run, callbacks: Sequence[Callback]) -> None:
    """Begin to save a run as it is now, once the save before it is done."""
    end_save(run, callbacks)
    _describe_run(run, callbacks)
    before, run.saved, run.saved_at = run.saved, run.step, run.clock()
    run.saving = Saving(run.checkpoints.begin_save(run.session, run.step, _rating(run)), before)


def hold_best(run: Run, callbacks: Sequence[Callback]) -> None:
    """Keep a run as it is now until its next save, because its evaluation is the best."""
    run.saved = -1  # if the step was saved, then without its rating
    _describe_run(run, callbacks)
    if not run.checkpoints.hold(run.session, run.step, _rating(run)):
        begin_save(run, callbacks)


def _describe_run(run: Run, callbacks: Sequence[Callback]) -> None:
    """Write the run's position, and the states of its callbacks, into the session's properties."""
    run.session.properties[_KEY] = {
        **{name: getattr(run, name) for name in _POSITION},
        "best": None if run.best is None else _to_json(run.best),
        "last": _to_json(run.evaluations[-1]) if run.evaluations else None,
        "callbacks": _states(callbacks),
        _DATA: _data_facts(run.plan),
        _DIGESTS: dict(run.plan.digests),
        _RATE: run.plan.optimizer.lr,
    }


def _rating(run: Run) -> float | None:
    """The number of the best evaluation, if it was at this step.

    Others are not rated: of two that are equally good, the folder would keep the newer.
    """
    best = run.best if run.best is not None and run.best.step == run.step else None
    return None if best is None else best.numbers.get(run.plan.monitor)


def end_save(run: Run, callbacks: Sequence[Callback]) -> None:
    """Wait until the last save is done; if it failed, the error is logged and others are kept."""
    if run.saving is None:
        return
    saving, run.saving = run.saving, None
    paths = saving.save.wait()
    if not paths:
        run.saved = saving.before
    for path in paths:
        for callback in callbacks:
            callback.on_checkpoint(run, path)


def resume_run(run: Run, found: SavedState, callbacks: Sequence[Callback]) -> None:
    """Continue from a checkpoint."""
    where = f"{run.folder.checkpoints}, step {found.step}"
    run.session.restore(found.tensors, found.properties, where=where)
    position = run.session.properties.get(_KEY)
    if not isinstance(position, Mapping):
        raise CheckpointMismatch(f"{where}: it is not of `onward train`\nstart another run")
    _check_position(run, position)
    for name in _POSITION:
        setattr(run, name, position[name])
    if position.get(_RATE, run.plan.optimizer.lr) != run.plan.optimizer.lr:
        run.session.set_learning_rate(run.plan.optimizer.lr)  # another one was given
    run.saved = run.step
    run.best = _from_json(position["best"])
    last = _from_json(position["last"])
    run.evaluations = [] if last is None else [last]
    for name, callback in _named(callbacks).items():
        if name in position["callbacks"]:
            callback.restore(position["callbacks"][name])


def _data_facts(plan: TrainingPlan) -> dict[str, int]:
    """The sizes that say which rows are at a position."""
    return {**plan.sizes, "batches": len(plan.training)}


def _check_position(run: Run, position: Mapping[str, Any]) -> None:
    """Refuse a position in other data, and one after the last step."""
    again = f"train its model in a new run: onward train {run.folder.model}"
    for name, count in _data_facts(run.plan).items():
        before = position.get(_DATA, {}).get(name, count)
        if count != before:
            raise CheckpointMismatch(
                f"the data of {run.folder.path} has changed: it has {count:,} {name}, and had "
                f"{before:,} when the run was saved\ngive it the same data, or {again}"
            )
    known, digests = position.get(_DIGESTS, {}), run.plan.digests
    changed = [name for name in digests if known.get(name, digests[name]) != digests[name]]
    if changed:
        word = "column" if len(changed) == 1 else "columns"
        raise CheckpointMismatch(
            f"the data of {run.folder.path} has changed since the run was saved: {word} "
            f"{list_names(changed)} {'has' if len(changed) == 1 else 'have'} other values\n"
            f"give it the same rows in the same order, or {again}"
        )
    if position["step"] > run.plan.steps:
        raise CheckpointMismatch(
            f"{run.folder.path} has made {position['step']:,} steps, and is to make "
            f"{run.plan.steps:,}\ngive it more --epochs or --max-steps, or {again}"
        )


def _states(callbacks: Sequence[Callback]) -> dict[str, Any]:
    states = {name: callback.state() for name, callback in _named(callbacks).items()}
    return {name: state for name, state in states.items() if state}


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by the names of their classes; several of one class are numbered."""
    named: dict[str, Callback] = {}
    for callback in callbacks:
        name = kind = type(callback).__name__
        count = 1
        while name in named:
            count += 1
            name = f"{kind} {count}"
        named[name] = callback
    return named


def _to_json(evaluation: Evaluation) -> dict[str, Any]:
    counts = evaluation.confusion
    return {
        "step": evaluation.step,
        "epoch": evaluation.epoch,
        "numbers": dict(evaluation.numbers),
        "is_best": evaluation.is_best,
        "confusion": None if counts is None else np.asarray(counts).tolist(),
        "seconds": evaluation.seconds,
    }


def _from_json(record: Any) -> Evaluation | None:
    if record is None:
        return None
    counts = record["confusion"]
    return Evaluation(
        step=record["step"],
        epoch=record["epoch"],
        numbers=record["numbers"],
        is_best=record["is_best"],
        confusion=None if counts is None else np.array(counts),
        seconds=record["seconds"],
    )
