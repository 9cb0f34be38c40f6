"""Lessons: what a student learns from its teachers: pairs of values, their losses, the feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Feeds
from onward.compress.distillation.hidden_values import PROJECTION, Hidden, expose_values, project
from onward.compress.distillation.stored_batches import StoredBatches
from onward.compress.distillation.teacher_losses import Relations, make_teacher_loss
from onward.compress.distillation.teacher_outputs import TeacherOutputs
from onward.errors import DataError, OptionError
from onward.graph.shapes.infer import infer_shapes
from onward.losses.classification import CrossEntropy
from onward.losses.combined import Total
from onward.losses.loss import Loss
from onward.losses.regression import MSE
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_LARGE = 20  # a deviation of logits over the temperature that leaves no soft answers
LABELS = "onward.labels"  # the input of the loss with the data's targets


@dataclass(frozen=True)
class StudentTeacherPair:
    """A value of the student and the value of each teacher that it is compared with.

    Attributes:
        student, teachers: the compared values: outputs, or the logits before them
        loss: "kl", "mse" or "cosine"
        student_output, teacher_outputs: the outputs that they belong to
    """

    student: str
    teachers: Sequence[str]
    loss: str
    student_output: str
    teacher_outputs: Sequence[str]


@dataclass
class Lessons:
    """The student with the values that are compared as outputs, and its loss.

    Attributes:
        model: the student, with inner values as outputs, and projections
        parts: losses and their weights, by name
        sources: for each input of the loss with a teacher's answer: the teacher, the value
        projections: the names of the projections
        teacher_runs: how often teachers ran in each epoch
        notes: sentences for the report
    """

    model: ir.Model
    parts: dict[str, tuple[Loss, float]] = field(default_factory=dict)
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    projections: list[str] = field(default_factory=list)
    teacher_runs: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def loss(self) -> Loss:
        """The sum of the losses."""
        return Total(self.parts)

    @property
    def compared(self) -> list[str]:
        """The outputs of the model that are compared."""
        return [str(getattr(loss, "output", "")) for loss, _ in self.parts.values()]

    def feeds_at(
        self, step: int, batches: StoredBatches, teachers: Sequence[TeacherOutputs]
    ) -> Feeds:
        """The feeds of a step: the student's, the teachers' answers, labels."""
        epoch, (feeds, labels) = batches.epoch(step), batches.at(step)[1]
        while len(self.teacher_runs) <= epoch:
            self.teacher_runs.append(0)
        before = sum(teacher.runs for teacher in teachers)
        answers = [teacher.of(feeds) for teacher in teachers]
        self.teacher_runs[epoch] += sum(teacher.runs for teacher in teachers) - before
        known = {str(value.name) for value in self.model.graph.inputs}
        found = {name: feed for name, feed in feeds.items() if name in known}
        for name, (place, value) in self.sources.items():
            found[name] = answers[place][value]
        if "labels" in self.parts:
            found[LABELS] = np.asarray(labels)
        return found


def plan_lessons(
    student: ir.Model,
    teachers: Sequence[TeacherOutputs],
    pairs: Sequence[StudentTeacherPair],
    hidden: Sequence[Hidden],
    batch: tuple[Feeds, Any],
    *,
    weights: Sequence[float],
    temperature: float,
    standardized: bool,
    alpha: float | None,
    seed: int,
) -> Lessons:
    """The losses of a student; the first batch decides shapes."""
    model = infer_shapes(student.clone())
    expose_values(model, [p.student for p in pairs] + [h.student for h in hidden], "student")
    mine = _run(model, batch[0])
    its = [teacher.of(batch[0]) for teacher in teachers]
    lessons = Lessons(model)
    has_labels = batch[1] is not None
    if alpha is None:
        alpha = 0.5 if has_labels else 1.0
    for pair in pairs if alpha else ():
        _add_pair(lessons, pair, mine, its, weights, (temperature, standardized), alpha)
    if has_labels and alpha < 1:
        label = _label_loss(pairs[0].student, mine[pairs[0].student], np.asarray(batch[1]))
        lessons.parts["labels"] = (label, 1 - alpha)
    elif alpha < 1:
        raise DataError(
            f"alpha={alpha:g} uses labels for a part of the loss, but the data has none\n"
            "give target=, the name of the column that holds them, or alpha=1"
        )
    for place, each in enumerate(hidden):
        _add_hidden(lessons, each, place, mine[each.student], its[each.of][each.teacher], seed)
    return lessons


def _run(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Array]:
    session = InferenceSession(model, SessionOptions(log_severity_level=4))
    known = {arg.name for arg in session.get_inputs()}
    names = [arg.name for arg in session.get_outputs()]
    return dict(zip(names, session.run(names, {n: x for n, x in feeds.items() if n in known})))


def _add_pair(
    lessons: Lessons,
    pair: StudentTeacherPair,
    mine: Mapping[str, Array],
    its: Sequence[Mapping[str, Array]],
    weights: Sequence[float],
    softening: tuple[float, bool],
    alpha: float,
) -> None:
    x = mine[pair.student]
    for place, (name, share) in enumerate(zip(pair.teachers, weights, strict=True)):
        if its[place][name].shape != x.shape:
            raise OptionError(
                f"the student's {pair.student!r} has shape {x.shape}, "
                f"the teacher's {name!r} {its[place][name].shape}\n"
                "only values of one shape can be compared: give pairs={student's: teacher's}"
            )
        fed = f"teacher{place}.{pair.student}"
        axis = 1 if x.ndim >= 4 else -1
        if pair.loss == "kl" and (not x.ndim or x.shape[axis] == 1):
            raise OptionError(
                f"{pair.student!r} has one number in each row: 'kl' has no classes to compare\n"
                "give loss='mse' for numbers"
            )
        temperature, standardized = softening
        loss = make_teacher_loss(pair.loss, pair.student, fed, temperature, axis, standardized)
        deviation = float(np.std(its[place][name]))
        if pair.loss == "kl" and not standardized and deviation > _LARGE * temperature:
            lessons.notes.append(
                f"the teacher's {name!r} has a deviation of {deviation:.3g}: at temperature "
                f"{temperature:g}, only its first choices count; standardize the logits, or give "
                "a higher temperature"
            )
        lessons.parts[fed] = (loss, alpha * share)
        lessons.sources[fed] = (place, name)


def _label_loss(output: str, scores: Array, labels: Array) -> Loss:
    """Cross entropy for classes; MSE for targets that are numbers of the output's shape."""
    if labels.dtype.kind in "iub" and scores.ndim >= 2:
        by_token = scores.ndim == labels.ndim + 1 and labels.shape == scores.shape[:-1]
        return CrossEntropy(output=output, target=LABELS, axis=-1 if by_token else 1)
    if labels.dtype.kind == "f" and labels.shape == scores.shape:
        return MSE(output=output, target=LABELS)
    raise DataError(
        f"targets of type {labels.dtype} and shape {labels.shape} fit no loss of {output!r}, "
        f"whose shape is {scores.shape}\ngive integers for classes, or numbers of its shape"
    )


def _add_hidden(
    lessons: Lessons, hidden: Hidden, place: int, mine: Array, its: Array, seed: int
) -> None:
    fed = f"hidden{place}.{hidden.student}"
    lessons.sources[fed] = (hidden.of, hidden.teacher)
    loss: Loss
    if hidden.loss == "attention":
        if mine.shape[:-1] != its.shape[:-1]:
            raise OptionError(
                f"the student's {hidden.student!r} has shape {mine.shape}, "
                f"the teacher's {hidden.teacher!r} {its.shape}\n"
                "for relations of tokens, all sizes but the last must be equal"
            )
        sizes = (*(f"{fed}.{axis}" for axis in range(its.ndim - 1)), its.shape[-1])
        loss = Relations(output=hidden.student, target=fed, sizes=sizes, heads=hidden.heads)
    else:
        compared = project(lessons.model, hidden, mine, its, place, seed)
        if compared != hidden.student:
            lessons.projections.append(f"{PROJECTION}.{place}")
        loss = make_teacher_loss(hidden.loss, compared, fed)
    lessons.parts[fed] = (loss, hidden.weight)
