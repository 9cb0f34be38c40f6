"""prune: remove whole channels, heads, units and layers from a model, and measure the result.

report = prune("model.onnx", "rows.npz", keep=0.5, tune="5min")
report.save("pruned.onnx")
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onward.compress.calibration import Calibration
from onward.compress.distillation.match_teacher import match_teacher
from onward.compress.distillation.trimmed_batches import trimmed_batches
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.pruning import sparse_masks
from onward.compress.pruning.prune_settings import check_importance, make_goal, read_time
from onward.compress.pruning.pruning_report import make_report
from onward.compress.pruning.pruning_task import Pruned, PruningTask
from onward.compress.pruning.residual_blocks import remove_layers
from onward.compress.pruning.unit_cut import UnitCut
from onward.compress.pruning.units import prepare
from onward.compress.quality import Judge, OwnMetric, Quality
from onward.compress.report import Change, Report
from onward.errors import OptionError
from onward.graph.files import Source, load
from onward.losses.loss import Loss
from onward.runner.metrics.metric import Metric
from onward.sessions.model_description import describe


def prune(
    model: Source,
    data: Any = None,
    *,
    keep: float | None = None,
    speedup: float | None = None,
    macs: int | str | None = None,
    layers: int = 0,
    pattern: str | None = None,
    sparsity: float | None = None,
    importance: str = "magnitude",
    target: str | None = None,
    metric: str | Metric | OwnMetric | None = None,
    loss: Loss | None = None,
    provider: str = "cpu",
    multiple: int = 8,
    tune: float | str | None = None,
    learning_rate: float = 3e-4,
    only: Sequence[str] = (),
    protect: Sequence[str] = (),
    batch: int | None = None,
    limit: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Report:
    """Remove what a model's outputs need least, whole units at a time; the model is not changed.

    Args:
        model: the model
        data: what `Calibration` takes: a file, rows, feeds; None: random feeds
        keep: the share of each group of units that stays; 0.5 if nothing else is asked for
        speedup: how many times as fast the model has to become, measured on `provider`
        macs: how many multiplications a run may have: 1e9, "1G"
        layers: how many residual blocks to remove, in addition
        pattern, sparsity: zeros inside the weights instead: "2:4", or this share of all. They
            bring no speed on a CPU
        importance: "magnitude" of the weights, "activation" (needs data: the variance that goes
            with a unit; its mean goes into the next bias), or "gradient" (the change of the loss,
            or of the outputs, to first order)
        target: the column of the data that holds the targets of `metric` and `loss`
        metric: a metric's name, a Metric or a function that runs the model
        loss: for importance="gradient"
        provider: the provider that will run the model
        multiple: sizes are multiples of this where a group is large enough
        tune: how long to recover by distillation from the original: 300, "5min"
        learning_rate: of tuning
        only, protect: patterns of groups that may be pruned, or may not: names of weights, or a
            kind: "channels", "heads", "units", "recurrent"
        batch: rows of a batch; a run is timed with 1 if it is not given
        limit: the number of batches to read at most
        folder: where an interrupted tuning is kept; the same call continues it
        seed: of random feeds and of tuning
        progress: called with what begins now, how much is done and the total
    """
    goal = make_goal(keep, speedup, macs, layers, pattern, sparsity)
    check_importance(importance)
    if multiple < 1:
        raise OptionError(f"multiple must be at least 1, not {multiple}")
    seconds = read_time(tune)
    progress("read the model", 0, None)
    original = load(model)
    inputs = [describe(value) for value in original.graph.inputs if not value.is_initializer()]
    calibration = Calibration(data, inputs, target=target, batch=batch, limit=limit, seed=seed)
    timed = Calibration(data, inputs, target=target, batch=batch or 1, limit=1, seed=seed).first()
    judge = Judge(original, calibration, metric=metric, providers=[provider])
    task = PruningTask(
        original=original,
        calibration=calibration,
        timed=timed,
        judge=judge,
        providers=[provider],
        goal=goal,
        progress=progress,
        seed=seed,
        multiple=multiple,
    )
    pruned = _remove(task, importance, loss, only, protect)
    if seconds is not None:
        pruned = _recover(task, pruned, seconds, learning_rate, folder)
    return make_report(task, pruned)


def _remove(
    task: PruningTask,
    importance: str,
    loss: Loss | None,
    only: Sequence[str],
    protect: Sequence[str],
) -> Pruned:
    """Remove what the goal asks for."""
    goal = task.goal
    task.progress("find what can be removed", 0, None)
    ready = prepare(task.original)
    if goal.is_sparse:
        model, changes = sparse_masks.zero_weights(ready, goal.pattern, goal.sparsity)
        return Pruned(model, changes, [sparse_masks.NO_SPEED])
    changes, notes, reached = [], [], True
    if goal.layers:
        ready, names = remove_layers(ready, goal.layers, task.judge, task.progress)
        changes += [Change(name=n, operator="Add", format="layer removed") for n in names]
        notes.append(f"{len(names)} residual blocks became the identity")
    if goal.cuts_units:
        cut = UnitCut(task, ready, only, protect)
        cut.rate(importance, loss)
        ready, more, reached = cut.cut()
        changes, notes = changes + more, notes + cut.notes
    if task.calibration.is_random:
        notes.append("no data was given: the quality was measured on random feeds")
    return Pruned(ready, changes, notes, reached)


def _recover(
    task: PruningTask,
    pruned: Pruned,
    seconds: float,
    rate: float,
    folder: str | os.PathLike[str] | None,
) -> Pruned:
    """Train the pruned model to give the original's outputs; the better of both stays."""
    trimmed = trimmed_batches(task.original, task.calibration)
    judge = task.judge if trimmed is None else Judge(task.original, trimmed)
    before = judge.rate(pruned.model)
    tuned = match_teacher(
        pruned.model,
        task.original,
        trimmed or task.calibration,
        seconds=seconds,
        learning_rate=rate,
        folder=folder,
        seed=task.seed,
        progress=task.progress,
    )
    after = judge.rate(tuned)
    if not _is_better(after, before):
        note = "tuning did not help; the model is as it was cut"
        return replace(pruned, notes=[*pruned.notes, note])
    note = f"tuning: similarity {before.similarity:.4f} to {after.similarity:.4f}"
    return replace(pruned, model=tuned, notes=[*pruned.notes, note])


def _is_better(a: Quality, b: Quality) -> bool:
    if not math.isfinite(a.error):
        return False
    return a.error < b.error or (a.similarity > b.similarity)
