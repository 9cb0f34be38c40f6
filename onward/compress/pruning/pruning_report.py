"""Measure a pruned model and the original, and report both."""

from __future__ import annotations

import onnx_ir as ir

from onward.compress.pruning.pruning_task import Pruned, PruningTask
from onward.compress.pruning.unit_costs import count_macs
from onward.compress.pruning.units import finish
from onward.compress.quality import Quality
from onward.compress.report import Measured, Report
from onward.compress.timing import time_in_turns
from onward.graph.files import saved_bytes
from onward.graph.scopes import stored_tensors


def make_report(task: PruningTask, pruned: Pruned) -> Report:
    """Measure the model and the original in turns."""
    task.progress("measure the result", 0, None)
    model = finish(pruned.model)
    times = time_in_turns(
        {"before": task.original, "after": model}, task.timed, providers=task.providers
    )
    before = _measure(task, task.original, times["before"], task.judge.original)
    after = _measure(task, model, times["after"], task.judge.rate(model))
    notes, found = list(pruned.notes), times["before"] / times["after"]
    if task.goal.speedup is not None and not pruned.reached:
        notes.insert(
            0,
            f"{task.goal.speedup:g} times as fast was not reached: the fastest model found "
            f"is {found:.2f} times as fast",
        )
    elif found < 1 and not task.goal.is_sparse:
        notes.append(
            "the model is smaller, but not faster here: kernels like multiples of 16, and a "
            "model this small spends its time outside of them"
        )
    is_best = bool(pruned.changes) and not pruned.reached
    return Report(
        task="prune",
        model=model,
        helped=bool(pruned.changes) and pruned.reached,
        before=before,
        after=after,
        changes=pruned.changes,
        notes=notes,
        metric_name=task.judge.metric_name,
        rejected=model if is_best else None,
        rejected_figures=after if is_best else None,
    )


def _measure(task: PruningTask, model: ir.Model, seconds: float, quality: Quality) -> Measured:
    return Measured(
        file_bytes=saved_bytes(model),
        seconds=seconds,
        quality=quality,
        macs=count_macs(model, task.dynamic_sizes()),
        parameters=sum(tensor.size for _, tensor in stored_tensors(model)),
    )
