"""Evaluate: the loss and the metrics on held-out rows, and what the model got wrong."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from onward.errors import NotFinite
from onward.programs.program import LOSS
from onward.runner.data.batches import Batches, DataBatch
from onward.runner.events import Evaluation, Mistake
from onward.runner.metrics.confusion_matrix import ConfusionMatrix
from onward.runner.nonfinite import find_nonfinite, locate_nonfinite
from onward.runner.run import INTERRUPTED, Run
from onward.runner.team import run_and_ask

_MOST_CLASSES = 200  # of a confusion matrix that can be looked at
_MOST_MISTAKES = 24
_HELD_OUT = "val_"


def evaluate(run: Run) -> Evaluation | None:
    """Evaluate on all held-out rows; None without such rows, or if the run is interrupted.

    A run whose held-out loss is not finite is stopped, unless on_nan is "skip". Several processes
    share the batches; their numbers are those of one process, bit for bit.
    """
    plan = run.plan
    if plan.validation is None:
        return None
    started = run.clock()
    own = _Measured(run)
    with _averaged_weights(run):
        if not _measure(run, plan.validation, own):
            return None
    found = _join(run, run.team.gather(own.state())) if run.team.size > 1 else own
    finite = found.finite
    total = 0.0
    for _, loss in sorted(found.losses.items()):
        total += loss  # in the order of the batches, whichever process had them
    numbers = {f"{_HELD_OUT}{LOSS}": total / found.rows}
    for metric in found.metrics:
        numbers[f"{_HELD_OUT}{metric.name}"] = float(metric.result()) if finite else math.nan
    return Evaluation(
        step=run.step,
        epoch=run.epoch,
        numbers=numbers,
        is_best=_is_better(run, numbers),
        confusion=found.matrix.result() if found.matrix is not None and finite else None,
        mistakes=[each for _, each in found.mistakes],
        seconds=run.clock() - started,
    )


def _measure(run: Run, held_out: Batches, own: _Measured) -> bool:
    """Evaluate every n-th batch, for n processes; whether nothing interrupted it.

    All processes evaluate equally often, because they may need each other for it: those that have
    no batch left evaluate the last one, which another process counts.
    """
    team, count = run.team, len(held_out)
    turns = range(team.rank, -(-count // team.size) * team.size, team.size)
    chosen = [min(number, count - 1) for number in turns]
    good = True
    with contextlib.closing(held_out.choose(0, chosen)) as batches:
        for number in turns:
            batch, ends = run_and_ask(team, lambda: next(batches), _is_interrupted(run) or not good)
            if ends:
                return _end(run)
            results = run.session.evaluate(batch.feeds)
            if number < count:
                good = own.add(run, number, batch, results)
    _, ends = run_and_ask(team, lambda: None, not good)
    return _end(run) if ends else True


def _is_interrupted(run: Run) -> bool:
    """Whether this process was asked to stop at once."""
    return run.asked is not None and run.asked[0] == INTERRUPTED


def _end(run: Run) -> bool:
    """Stop all processes, because one was asked to stop or met numbers that are not finite."""
    if not run.stopped:
        run.adopt_stop()
    return False


class _Measured:
    """What was measured on some of the held-out batches."""

    def __init__(self, run: Run) -> None:
        self.metrics = run.plan.make_metrics()
        self.matrix = _confusion_matrix(run)
        self.mistakes: list[tuple[int, Mistake]] = []  # with the numbers of their batches
        self.losses: dict[int, float] = {}  # of each batch, times its rows
        self.rows, self.finite = 0, True

    def add(self, run: Run, number: int, batch: DataBatch, results: Any) -> bool:
        """Count a batch; False if it ends the run."""
        plan = run.plan
        self.losses[number] = float(results[LOSS]) * len(batch)
        self.rows += len(batch)
        if plan.target not in batch.feeds:
            return True  # the model's own output is the loss
        outputs = np.asarray(results[plan.output])
        finite = math.isfinite(self.losses[number]) and not np.isnan(outputs).any()
        self.finite = self.finite and finite
        if not self.finite and run.config.on_nan == "stop":
            _stop_at_nonfinite(run, batch)
            return False
        if not self.finite:
            return True  # metrics refuse such outputs
        targets = np.asarray(batch.feeds[plan.target])
        for metric in self.metrics:
            metric.update(outputs, targets)
        if self.matrix is not None:
            if run.config.mixup:  # targets are weights of classes
                targets = targets.argmax(1)
            self.matrix.update(outputs, targets)
            left = _MOST_MISTAKES - len(self.mistakes)
            found = _mistakes(run, batch, outputs, targets, left)
            self.mistakes += [(number, each) for each in found]
        return True

    def state(self) -> dict[str, Any]:
        """What the other processes need."""
        return vars(self)


def _join(run: Run, states: Sequence[Mapping[str, Any]]) -> _Measured:
    """What all processes have measured."""
    whole = _Measured(run)
    for state in states:
        for metric, other in zip(whole.metrics, state["metrics"]):
            metric.merge(other)
        if whole.matrix is not None:
            whole.matrix.merge(state["matrix"])
        whole.losses |= state["losses"]
        whole.mistakes += state["mistakes"]
        whole.rows += state["rows"]
        whole.finite = whole.finite and state["finite"]
    whole.mistakes = sorted(whole.mistakes, key=itemgetter(0))[:_MOST_MISTAKES]
    return whole


def _stop_at_nonfinite(run: Run, batch: DataBatch) -> None:
    """End a run that has diverged; the first bad node is named."""
    found = None if run.team.is_sharded else find_nonfinite(run.session, batch.feeds)
    reason = "the loss is not finite"
    hint = "lower --learning-rate, or clip the gradients: --max-grad-norm 1"
    if found is not None:
        reason = locate_nonfinite(found, batch)
        hint = "correct the data" if found.kind == "feed" else hint
    error = NotFinite(f"evaluation at step {run.step}: {reason}\n{hint}")
    run.stop("the evaluation is not finite", error)


def _confusion_matrix(run: Run) -> ConfusionMatrix | None:
    names, scores = [str(name) for name in run.plan.classes], run.plan.scores
    if scores is None or scores.task == "multilabel" or not 1 < len(names) <= _MOST_CLASSES:
        return None
    return ConfusionMatrix(classes=names, scores=scores)


def _is_better(run: Run, numbers: Mapping[str, float]) -> bool:
    """Whether an evaluation is the best one: by the monitored number, and by the loss if equal.

    Of a few rows, many evaluations have the same accuracy, also while the model still learns.
    """
    monitor, loss = run.plan.monitor, f"{_HELD_OUT}{LOSS}"
    number = numbers.get(monitor, math.nan)
    if not math.isfinite(number):
        return False
    if run.best is None:
        return True
    best = run.best.numbers
    if number == best[monitor]:
        return numbers[loss] < best.get(loss, math.inf)
    return number > best[monitor] if run.plan.higher_is_better else number < best[monitor]


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
    names, others = run.plan.classes, (run.plan.target, run.plan.weights)
    wrong = np.flatnonzero(answers != targets)[:most]
    return [
        Mistake(
            int(batch.positions[row]),
            {name: feed[row] for name, feed in batch.feeds.items() if name not in others},
            names[int(targets[row])] if targets[row] < len(names) else int(targets[row]),
            names[int(answers[row])] if answers[row] < len(names) else int(answers[row]),
        )
        for row in wrong
    ]
