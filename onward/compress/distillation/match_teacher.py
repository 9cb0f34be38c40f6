"""match_teacher: train a model so that its outputs become a teacher's, without labels.

quantized = match_teacher(quantized, "float.onnx", calibration, seconds=300)
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.compress.calibration import Calibration, Feeds
from onward.compress.distillation.stored_batches import StoredBatches
from onward.compress.distillation.student_training import Limits, TrainedStudent, train_student
from onward.compress.distillation.teacher_losses import make_teacher_loss
from onward.compress.distillation.teacher_outputs import TeacherOutputs, model_digest
from onward.compress.progress_steps import Progress, no_progress
from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.scopes import ancestors, walk
from onward.losses.combined import Total
from onward.losses.loss import Loss
from onward.message_text import list_names, suggest_names
from onward.optimizers.adam import AdamW
from onward.optimizers.groups import Group
from onward.passes.pipelines import PREPARE
from onward.passes.training_mode import eval_mode
from onward.programs.export import export_model
from onward.programs.select import likely_parameters, matching, restore_parameters, weights
from onward.programs.training_options import TrainingOptions

if TYPE_CHECKING:
    from onward.graph.files import Source


def match_teacher(
    student: ir.Model,
    teacher: Source | TeacherOutputs,
    calibration: Calibration,
    *,
    pairs: Mapping[str, str] | None = None,
    loss: str | Loss = "mse",
    temperature: float = 1.0,
    steps: int | None = None,
    seconds: float | None = None,
    learning_rate: float = 1e-4,
    schedule: str = "cosine",
    groups: Mapping[str, float] | None = None,
    trained: Sequence[str] = ("*",),
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
    on_trained: Callable[[TrainedStudent], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ir.Model:
    """The student, trained so that its outputs become the teacher's; a new model.

    Dropout and BatchNormalization stay in inference mode. Updates whose gradients are not finite
    are skipped.

    Args:
        student: the model that is trained; it is not changed
        teacher: a model, or its TeacherOutputs, which may be shared by several calls
        calibration: the batches, of the student's inputs
        pairs: the student's outputs and the teacher's that they are compared with; None: those of
            the same name
        loss: "mse", "cosine", "kl" (of logits), or a Loss, which reads the teacher's answers as
            inputs with the names `teacher_input(student's output)`
        temperature: of "kl"
        steps, seconds: when to end, whichever is first; both None: after 500 steps
        learning_rate: of AdamW
        schedule: "cosine" to a tenth, "high-low" (a tenth in the last third) or "constant"
        groups: other learning rates, by pattern of parameters: {"*_scale": 1e-5}
        trained: patterns of the parameters that change; "*" is those that are likely weights,
            other patterns add to them
        weight_decay, clip_norm: of AdamW
        folder: where Ctrl-C saves the state; the same call continues. None: nowhere
        seed: of the order of batches
        progress: called with what begins now, the share that is done and 1
        on_trained: called with the losses, the number of steps and the time
        clock: seconds, for tests
    """
    limits = Limits(steps=steps, seconds=seconds, schedule=schedule)
    answers = teacher if isinstance(teacher, TeacherOutputs) else TeacherOutputs(teacher)
    matched = match_outputs(student, answers, pairs)
    batches = StoredBatches(calibration, seed)

    def feeds_at(step: int) -> Feeds:
        _, (feeds, _) = batches.at(step)
        found = answers.of(feeds)
        return {**feeds, **{teacher_input(mine): found[its] for mine, its in matched.items()}}

    options = TrainingOptions(
        trainable=trainable_names(student, trained, matched),
        groups=[Group(parameters=name, lr=rate) for name, rate in (groups or {}).items()],
        frozen_batch_norms=batch_norm_names(student),
        clip_norm=clip_norm,
        outputs=[],
        seed=seed,
    )
    settings = (matched, repr(loss), learning_rate, schedule, groups, list(trained), seed)
    key = f"{model_digest(student)} {model_digest(answers.model)} {settings}"
    done = train_student(
        eval_mode(student.clone()),  # without Dropout
        _total(matched, loss, temperature),
        AdamW(lr=learning_rate, weight_decay=weight_decay),
        options,
        feeds_at,
        limits,
        folder=folder,
        key=hashlib.sha256(key.encode()).hexdigest(),
        progress=progress,
        clock=clock,
    )
    if on_trained is not None:
        on_trained(done)
    return with_tensors(student, done)


def teacher_input(output: str) -> str:
    """The name of the loss's input with the teacher's answer for a student's output."""
    return f"teacher.{output}"


def with_tensors(student: ir.Model, trained: TrainedStudent) -> ir.Model:
    """A copy of the student with the trained tensors and all of its inputs."""
    graph = student.graph
    inputs = [str(v.name) for v in graph.inputs if not v.is_initializer()]
    return export_model(student, trained.tensors, inputs=inputs)


def match_outputs(
    student: ir.Model, answers: TeacherOutputs, pairs: Mapping[str, str] | None
) -> dict[str, str]:
    """The student's outputs that are compared, and the teacher's that each is compared with."""
    mine = {str(value.name): value for value in student.graph.outputs}
    if pairs is not None:
        for name, other in pairs.items():
            if name not in mine:
                hint = suggest_names(name, mine, "it has")
                raise OptionError(f"the student has no output {name!r}\n{hint}")
            if other not in answers.names:
                hint = suggest_names(other, answers.names, "it has")
                raise OptionError(f"the teacher has no output {other!r}\n{hint}")
        if not pairs:
            raise OptionError("pairs is empty: name at least one output of the student")
        return dict(pairs)
    floats = [name for name, value in mine.items() if value.dtype in FLOATS]
    shared = {name: name for name in floats if name in answers.names}
    if shared:
        return shared
    if len(floats) == len(answers.names) == 1:
        return {floats[0]: answers.names[0]}
    raise OptionError(
        f"no output of the student ({list_names(mine)}) has the name of one of the teacher's "
        f"({list_names(answers.names)})\ngive pairs={{student's output: teacher's output}}"
    )


def batch_norm_names(model: ir.Model) -> Sequence[str]:
    """A pattern of all BatchNormalization nodes, if there are any."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    found = any(n.op_type == "BatchNormalization" for graph in graphs for n in walk(graph))
    return ["*"] if found else []


def _total(matched: Mapping[str, str], loss: str | Loss, temperature: float) -> Loss:
    if not isinstance(loss, str):
        return loss
    parts = {n: make_teacher_loss(loss, n, teacher_input(n), temperature) for n in matched}
    return next(iter(parts.values())) if len(parts) == 1 else Total(parts)


def trainable_names(
    student: ir.Model, patterns: Sequence[str], compared: Collection[str]
) -> list[str] | None:
    """The parameters of the patterns; None: the likely ones.

    With "*" and other patterns: the likely ones and those of the other patterns that the compared
    outputs depend on.
    """
    if list(patterns) == ["*"]:
        return None
    if "*" not in patterns:
        return list(patterns)
    model = student.clone()
    restore_parameters(model, [])
    model = PREPARE(model)
    known = weights(model)
    results = [value for value in model.graph.outputs if value.name in compared]
    needed = {value.name for value in ancestors(model.graph, results)}
    more = matching(known, [pattern for pattern in patterns if pattern != "*"], "trained")
    chosen = [*likely_parameters(model, known, results), *(n for n in more if n in needed)]
    return list(dict.fromkeys(chosen))
