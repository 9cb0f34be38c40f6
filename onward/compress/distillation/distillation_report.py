"""Measure a trained student and its teacher, and write the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Calibration, Feeds
from onward.compress.distillation.hidden_values import expose_values
from onward.compress.distillation.lessons import Lessons, StudentTeacherPair
from onward.compress.distillation.student_training import TrainedStudent
from onward.compress.distillation.teacher_outputs import TeacherOutputs
from onward.compress.quality import Quality, rate_outputs
from onward.compress.report import Measured, Report
from onward.compress.timing import time_in_turns
from onward.errors import OptionError
from onward.graph.costs.node_costs import model_costs
from onward.graph.files import weight_bytes
from onward.providers.options import SessionOptions
from onward.runner.metrics.make_metric import make_metric
from onward.runner.metrics.metric import Metric
from onward.sessions.inference import InferenceSession

_ROWS = 4096  # rows that are compared, if the user gives no test data
_EMBEDDED = 1 << 30  # bytes of weights, above which the graph does not count
_TIMED = 0.3  # seconds of measuring each model
_PRODUCTS = ("Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")


def make_report(
    judge: TeacherJudge,
    untrained: ir.Model,
    student: ir.Model,
    trained: TrainedStudent,
    lessons: Lessons,
    *,
    timed: bool,
) -> Report:
    """The student's figures in comparison with the first teacher's."""
    before, after = judge.rate(untrained), judge.rate(student)
    teacher, feeds = judge.teachers[0].model, judge.data.first()
    times = _time(teacher, student, feeds) if timed else (None, None)
    notes = [
        f"{trained.steps} steps in {trained.seconds:.0f} s; "
        f"similarity to the teacher {before.similarity:.4f} -> {after.similarity:.4f}"
    ]
    helped = after.similarity >= before.similarity
    if not helped:
        notes.append("training made it worse: try a smaller learning rate, or more data")
    notes += lessons.notes
    if trained.skipped:
        notes.append(f"{trained.skipped} steps were skipped: their gradients were not finite")
    return Report(
        task="distill",
        model=student,
        helped=helped,
        before=_measure(teacher, feeds, times[0], judge.rate_teachers()),
        after=_measure(student, feeds, times[1], after),
        notes=notes,
        metric_name=judge.metric_name,
        details={
            "steps": trained.steps,
            "skipped_steps": trained.skipped,
            "training_seconds": trained.seconds,
            "teacher_runs": lessons.teacher_runs,
            "losses": list(trained.losses),
        },
    )


class TeacherJudge:
    """Compares students with the teachers' answers on the same batches.

    Args:
        teachers: their answers
        pairs: what is compared
        data: the batches
        weights: the share of each teacher
        metric: of outputs and targets; None: none
        all_rows: whether to read all of the data, or its first rows
    """

    def __init__(
        self,
        teachers: Sequence[TeacherOutputs],
        pairs: Sequence[StudentTeacherPair],
        data: Calibration,
        weights: Sequence[float],
        metric: str | Metric | None,
        *,
        all_rows: bool,
    ) -> None:
        self.teachers, self.data = teachers, data
        self._pairs, self._weights = pairs, weights
        self._rows = math.inf if all_rows else _ROWS
        self._metric = make_metric(metric) if isinstance(metric, str) else metric
        if self._metric is not None and next(data.labelled_batches())[1] is None:
            raise OptionError(
                f"the metric {self._metric.name!r} compares outputs with targets, and the data "
                "has none\ngive target=, the name of the column that holds them"
            )

    @property
    def metric_name(self) -> str | None:
        """The name of the metric, for reports."""
        return None if self._metric is None else self._metric.name

    def rate(self, model: ir.Model) -> Quality:
        """A student's outputs in comparison with the teachers'."""
        compared = [pair.student for pair in self._pairs]
        names = [*compared, self._pairs[0].student_output]
        copy = model.clone()
        expose_values(copy, names, "student")
        session = InferenceSession(copy, SessionOptions(log_severity_level=4))
        known = {arg.name for arg in session.get_inputs()}

        def compare() -> Iterator[tuple[list[Array], list[Array]]]:
            for feeds, targets in self._batches():
                found = session.run(names, {n: x for n, x in feeds.items() if n in known})
                self._add(found.pop(), targets)
                expected = self._mean(feeds, [pair.teachers for pair in self._pairs])
                yield self._centered(expected), self._centered(found)

        self._reset()
        quality = rate_outputs(compare())
        return replace(quality, metric=self._result())

    def rate_teachers(self) -> Quality:
        """The teachers' metric; they are equal to themselves."""
        self._reset()
        for feeds, targets in self._batches() if self._metric is not None else ():
            self._add(self._mean(feeds, [self._pairs[0].teacher_outputs])[0], targets)
        return Quality(similarity=1.0, error=0.0, metric=self._result())

    def _centered(self, values: Sequence[Array]) -> list[Array]:
        """Logits minus their mean: a number that is added to a row's logits means nothing."""
        return [
            x - x.mean(axis=1 if x.ndim >= 4 else -1, keepdims=True) if pair.loss == "kl" else x
            for pair, x in zip(self._pairs, values, strict=True)
        ]

    def _mean(self, feeds: Feeds, wanted: Sequence[Sequence[str]]) -> list[Array]:
        """The weighted means of the teachers' values."""
        found = [teacher.of(feeds) for teacher in self.teachers]
        terms = [
            [w * each[name] for w, each, name in zip(self._weights, found, names, strict=True)]
            for names in wanted
        ]
        return [np.sum(each, axis=0) for each in terms]

    def _batches(self) -> Iterator[tuple[Feeds, Any]]:
        rows = 0
        for feeds, targets in self.data.labelled_batches():
            yield feeds, targets
            rows += max((len(x) for x in feeds.values() if np.ndim(x)), default=1)
            if rows >= self._rows:
                return

    def _reset(self) -> None:
        if self._metric is not None:
            self._metric.reset()

    def _add(self, outputs: Array, targets: Any) -> None:
        if self._metric is not None:
            self._metric.update(outputs, targets)

    def _result(self) -> float | None:
        return None if self._metric is None else self._metric.result()


def _measure(
    model: ir.Model, feeds: Mapping[str, Any], seconds: float | None, quality: Quality
) -> Measured:
    given = {str(v.name): v for v in model.graph.inputs if str(v.name) in feeds}
    sizes = {
        f"{name}:{axis}": size
        for name, value in given.items()
        for axis, size in enumerate(np.shape(feeds[name]))
        if value.shape is not None and axis > 0 and not isinstance(value.shape[axis], int)
    }
    costs = model_costs(model, sizes)
    products = sum(
        cost.flops for name, cost in costs.operators.items() if name.split("::")[-1] in _PRODUCTS
    )
    return Measured(
        file_bytes=_file_bytes(model),
        seconds=seconds,
        quality=quality,
        macs=round(products / 2),
        parameters=costs.parameters,
    )


def _file_bytes(model: ir.Model) -> int:
    weights = weight_bytes(model)
    return weights if weights > _EMBEDDED else ir.to_proto(model).ByteSize()


def _time(teacher: ir.Model, student: ir.Model, feeds: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of one row: of the teacher, of the student."""
    (of_teacher, rows), (of_student, more) = _rows(teacher, feeds), _rows(student, feeds)
    if of_teacher.keys() == of_student.keys() and rows == more:
        models = {"teacher": teacher, "student": student}
        times = time_in_turns(models, of_teacher, seconds=_TIMED)
        return times["teacher"] / rows, times["student"] / rows
    alone = [
        time_in_turns({"": model}, fed, seconds=_TIMED)[""]
        for model, fed in ((teacher, of_teacher), (student, of_student))
    ]
    return alone[0] / rows, alone[1] / more


def _rows(model: ir.Model, feeds: Mapping[str, Any]) -> tuple[Feeds, int]:
    """The feeds of a model with as few rows as it takes, and their number."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    own = {name: np.asarray(feed) for name, feed in feeds.items() if name in inputs}
    fixed = {value.shape[0] for name, value in inputs.items() if name in own and value.shape}
    count = next((size for size in fixed if isinstance(size, int)), 1)
    return {name: feed[:count] if feed.ndim else feed for name, feed in own.items()}, count
