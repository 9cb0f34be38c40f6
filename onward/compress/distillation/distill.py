"""distill: train a student on the answers of one or several teachers.

report = distill("teacher.onnx", "student.onnx", "images.npz", seconds=300)
report.save("trained.onnx")
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.compress.distillation.compared_outputs import make_pairs
from onward.compress.distillation.distillation_report import TeacherJudge, make_report
from onward.compress.distillation.hidden_values import Hidden
from onward.compress.distillation.lessons import StudentTeacherPair, plan_lessons
from onward.compress.distillation.match_teacher import trainable_names, with_tensors
from onward.compress.distillation.stored_batches import StoredBatches
from onward.compress.distillation.student_training import Limits, train_student
from onward.compress.distillation.teacher_outputs import TeacherOutputs, model_digest
from onward.compress.distillation.training_data import read_data
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.report import Report
from onward.errors import OptionError
from onward.graph.files import load
from onward.optimizers.adam import AdamW
from onward.optimizers.optimizer import Optimizer
from onward.programs.training_options import TrainingOptions
from onward.providers.choose import Asked
from onward.runner.metrics.metric import Metric

if TYPE_CHECKING:
    from onward.graph.files import Source


def distill(
    teacher: Source | Sequence[Source],
    student: Source,
    data: Any,
    *,
    target: str | None = None,
    loss: str | Mapping[str, str] = "kl",
    temperature: float = 4.0,
    standardized: bool = False,
    alpha: float | None = None,
    pairs: Mapping[str, str] | None = None,
    hidden: Sequence[Hidden] = (),
    weights: Sequence[float] | None = None,
    batch: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    learning_rate: float = 1e-3,
    optimizer: Optimizer | None = None,
    schedule: str = "cosine",
    clip_norm: float | None = 1.0,
    providers: Asked = None,
    training_providers: Asked = None,
    cache: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    test: Any = None,
    metric: str | Metric | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Train a student so that it answers like its teacher; the report's model is only the student.

    Args:
        teacher: a model, or several, whose answers are averaged
        student: the model that is trained; it is not changed
        data: anything that Calibration takes: a path, arrays, feeds; labels are not needed
        target: the column of the data with labels; with it, the loss is
            alpha (loss to the teacher) + (1 - alpha) (loss to the labels)
        loss: of outputs: "kl" for logits (with a temperature), "mse", "cosine"; or by the
            student's output: {"logits": "kl", "box": "mse"}
        temperature: T of T^2 KL(softmax(t / T) || softmax(x / T))
        standardized: with "kl", compare logits minus their mean over their deviation, row by row,
            so that the student need not reach the scale of the teacher's logits
        alpha: the teacher's share; None: 0.5 with labels, 1 without
        pairs: the student's outputs and the teacher's that they are compared with; None: those of
            the same name
        hidden: inner values that are compared in addition
        weights: of several teachers; None: equal
        batch: rows of a batch
        epochs, steps, seconds: when to end, whichever is first; none given: after 500 steps
        learning_rate: of AdamW
        optimizer: another one, with its own learning rate
        schedule: "cosine" to a tenth, "high-low" (a tenth in the last third) or "constant"
        clip_norm: the largest norm of all gradients; None: not clipped
        providers: those that run the teachers
        training_providers: those that train the student
        cache: a folder for the teachers' answers; a second epoch, or run, then needs no teacher
        folder: where Ctrl-C saves the state; the same call continues. None: nowhere
        test: data to compare both on; None: some of the data
        metric: of both models on the test data, such as "accuracy"; it needs target
        seed: of the order of the data and of projections
        progress: called with what begins now, the share that is done and 1
        clock: seconds, for tests

    >>> import numpy as np, onward
    >>> teacher = onward.new_model("mlp", features=4, hidden=(32,), classes=3)
    >>> student = onward.new_model("mlp", features=4, hidden=(4,), classes=3, seed=1)
    >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    >>> report = distill(teacher, student, {"x": x}, steps=20)
    >>> report.details["steps"]
    20
    """
    sources: list[Any] = list(teacher) if isinstance(teacher, (list, tuple)) else [teacher]
    shares = _shares(weights, len(sources))
    mine, models = load(student, any_domain=True), [load(each, any_domain=True) for each in sources]
    _check_hidden(hidden, len(models))
    matched = make_pairs(mine, models, pairs, loss)
    teachers = [
        TeacherOutputs(
            model, _wanted(place, matched, hidden, metric), providers=providers, folder=cache
        )
        for place, model in enumerate(models)
    ]
    progress("read the data", 0.0, None)
    labels = None if alpha == 1 and test is not None else target  # only the test data needs them
    calibration = read_data(data, mine, models, labels, batch, seed)
    measured_on = calibration if test is None else read_data(test, mine, models, target, batch, 0)
    batches = StoredBatches(calibration, seed)
    lessons = plan_lessons(
        mine,
        teachers,
        matched,
        hidden,
        batches.at(0)[1],
        weights=shares,
        temperature=temperature,
        standardized=standardized,
        alpha=alpha,
        seed=seed,
    )
    lessons.teacher_runs = [sum(each.runs for each in teachers)]  # on the first batch
    judge = TeacherJudge(teachers, matched, measured_on, shares, metric, all_rows=test is not None)
    chosen = optimizer or AdamW(lr=learning_rate, weight_decay=0.0)
    settings = (lessons.parts, chosen, schedule, clip_norm, seed, epochs, steps, seconds, batch)
    done = train_student(
        lessons.model,
        lessons.loss,
        chosen,
        TrainingOptions(
            trainable=trainable_names(lessons.model, ("*", *lessons.projections), lessons.compared),
            clip_norm=clip_norm,
            outputs=[],
            seed=seed,
        ),
        lambda step: lessons.feeds_at(step, batches, teachers),
        _limits(batches, epochs, steps, seconds, schedule),
        folder=folder,
        key=_key([mine, *models], settings),
        providers=training_providers,
        progress=progress,
        clock=clock,
    )
    for name in lessons.projections:
        del done.tensors[name]
    progress("compare the student with the teacher", 0.0, None)
    trained = with_tensors(mine, done)
    return make_report(judge, mine, trained, done, lessons, timed=providers is None)


def _limits(
    batches: StoredBatches,
    epochs: int | None,
    steps: int | None,
    seconds: float | None,
    schedule: str,
) -> Limits:
    """The limits of training; epochs as a number of steps."""
    if epochs is None:
        return Limits(steps=steps, seconds=seconds, schedule=schedule)
    if epochs < 1:
        raise OptionError(f"epochs must be at least 1, not {epochs}")
    most = epochs * batches.count
    return Limits(steps=min(steps or most, most), seconds=seconds, schedule=schedule)


def _wanted(
    place: int, pairs: Sequence[StudentTeacherPair], hidden: Sequence[Hidden], metric: object
) -> list[str]:
    """The values of a teacher that are needed."""
    names = [pair.teachers[place] for pair in pairs]
    names += [each.teacher for each in hidden if each.of == place]
    if metric is not None:
        names.append(pairs[0].teacher_outputs[place])
    return list(dict.fromkeys(names))


def _key(models: Sequence[ir.Model], settings: object) -> str:
    """The hash of a call, by which a later one continues it."""
    text = f"{[model_digest(model) for model in models]} {settings}"
    return hashlib.sha256(text.encode()).hexdigest()


def _shares(weights: Sequence[float] | None, count: int) -> list[float]:
    """The share of each teacher; they add up to 1."""
    if not count:
        raise OptionError("no teacher: give at least one model")
    if weights is None:
        return [1 / count] * count
    if len(weights) != count or not all(np.isfinite(w) and w >= 0 for w in weights):
        raise OptionError(
            f"weights must be one number of 0 or more for each of the {count} teachers, "
            f"not {list(weights)}"
        )
    if not sum(weights):
        raise OptionError("weights must not all be 0")
    return [float(weight) / sum(weights) for weight in weights]


def _check_hidden(hidden: Sequence[Hidden], count: int) -> None:
    for each in hidden:
        if not isinstance(each, Hidden):
            raise OptionError(
                f"hidden must be a list of Hidden, not {each!r}\n"
                "for example: [Hidden('student_value', 'teacher_value')]"
            )
        if each.of >= count:
            raise OptionError(f"{each!r} reads teacher {each.of}, and there are {count}, from 0")
