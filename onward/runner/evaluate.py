"""Evaluate: the loss and the metrics on held-out rows, and what the model got wrong."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from onward.programs.program import LOSS
from onward.runner.data.batches import DataBatch
from onward.runner.events import Evaluation, Mistake
from onward.runner.metrics.confusion_matrix import ConfusionMatrix
from onward.runner.run import Run

_MOST_CLASSES = 200  # of a confusion matrix that can be looked at
_MOST_MISTAKES = 24
_HELD_OUT = "val_"


def evaluate(run: Run) -> Evaluation | None:
    """Evaluate on all held-out rows; None without such rows, or if the run is interrupted."""
    plan = run.plan
    if plan.validation is None:
        return None
    started = run.clock()
    metrics = plan.make_metrics()
    matrix = _confusion_matrix(run)
    mistakes: list[Mistake] = []
    total, rows = 0.0, 0
    with _averaged_weights(run), contextlib.closing(plan.validation.epoch(0)) as batches:
        for batch in batches:
            if run.is_interrupted:
                return None
            results = run.session.evaluate(batch.feeds)
            total += float(results[LOSS]) * len(batch)
            rows += len(batch)
            if not metrics and matrix is None:
                continue  # the model computes its loss: there may be no target to compare
            outputs = np.asarray(results[plan.output])
            targets = np.asarray(batch.feeds[plan.target])
            for metric in metrics:
                metric.update(outputs, targets)
            if matrix is not None:
                if run.config.mixup:  # targets are weights of classes
                    targets = targets.argmax(1)
                matrix.update(outputs, targets)
                mistakes += _mistakes(run, batch, outputs, targets, _MOST_MISTAKES - len(mistakes))
    numbers = {f"{_HELD_OUT}{LOSS}": total / rows}
    numbers |= {f"{_HELD_OUT}{metric.name}": float(metric.result()) for metric in metrics}
    return Evaluation(
        step=run.step,
        epoch=run.epoch,
        numbers=numbers,
        is_best=_is_better(run, numbers.get(plan.monitor, math.nan)),
        confusion=None if matrix is None else matrix.result(),
        mistakes=mistakes,
        seconds=run.clock() - started,
    )


def _confusion_matrix(run: Run) -> ConfusionMatrix | None:
    names, scores = [str(name) for name in run.plan.classes], run.plan.scores
    if scores is None or scores.task == "multilabel" or not 1 < len(names) <= _MOST_CLASSES:
        return None
    return ConfusionMatrix(classes=names, scores=scores)


def _is_better(run: Run, number: float) -> bool:
    if not math.isfinite(number):
        return False
    if run.best is None:
        return True
    best = run.best.numbers[run.plan.monitor]
    return number > best if run.plan.higher_is_better else number < best


@contextlib.contextmanager
def _averaged_weights(run: Run) -> Iterator[None]:
    """Put the averaged weights in place of the current ones, if an average is kept."""
    averages = dict(run.session.averages)
    if not averages:
        yield
        return
    current = {name: np.array(run.session.parameters[name]) for name in averages}
    run.session.set_parameters(averages)
    try:
        yield
    finally:
        run.session.set_parameters(current)


def _mistakes(run: Run, batch: DataBatch, outputs: Any, targets: Any, most: int) -> list[Mistake]:
    """Rows with a wrong class, for models that give one answer for each row."""
    if most <= 0 or targets.ndim != 1 or targets.dtype.kind not in "iu":
        return []
    one = outputs.ndim == 1 or outputs.shape[1] == 1
    answers = (outputs.reshape(-1) > 0).astype(np.int64) if one else outputs.argmax(1)
    if answers.shape != targets.shape:
        return []
    names = run.plan.classes
    wrong = np.flatnonzero(answers != targets)[:most]
    return [
        Mistake(
            int(batch.positions[row]),
            {name: feed[row] for name, feed in batch.feeds.items() if name != run.plan.target},
            names[int(targets[row])] if targets[row] < len(names) else int(targets[row]),
            names[int(answers[row])] if answers[row] < len(names) else int(answers[row]),
        )
        for row in wrong
    ]
