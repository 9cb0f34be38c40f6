"""Distillation of hidden states: pairs of values, and projections where their widths differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array
from onward.errors import OptionError
from onward.graph.graph_ops import extend
from onward.message_text import suggest_names
from onward.settings import check_fields, choice, integer, nonempty_name, number, true_or_false

PROJECTION = "onward.projection"  # prefix of the projections' names, which are not exported
_CHANNELS_RANK = 4  # images: the width of (batch, channels, height, width) is axis 1


@dataclass(frozen=True)
class Hidden:
    """An inner value of the student that is trained to match one of a teacher.

    Attributes:
        student: the student's value
        teacher: the teacher's value
        loss: "mse", "cosine", or "attention": how tokens relate to each other (MiniLM), for which
            widths may differ
        weight: of this loss in the sum
        projected: learn a projection where the widths differ; it is not exported
        heads: of "attention": the parts into which widths are divided
        of: the index of the teacher, if there are several

    >>> Hidden("layer_1", "layer_3", loss="cosine").weight
    1.0
    """

    student: str
    teacher: str
    loss: str = "mse"
    weight: float = 1.0
    projected: bool = True
    heads: int = 1
    of: int = 0

    def __post_init__(self) -> None:
        check_fields(
            self,
            student=nonempty_name,
            teacher=nonempty_name,
            loss=choice("mse", "cosine", "attention"),
            weight=number(),
            projected=true_or_false,
            heads=integer(1),
            of=integer(0),
        )


def expose_values(model: ir.Model, names: Sequence[str], owner: str) -> None:
    """Make inner values outputs, in place."""
    graph = model.graph
    made = {str(value.name): value for node in graph for value in node.outputs if value.name}
    returned = {str(value.name) for value in graph.outputs}
    for name in dict.fromkeys(names):
        if name in returned:
            continue
        if name not in made:
            hint = suggest_names(name, [*returned, *made])
            raise OptionError(f"the {owner} has no value {name!r}\n{hint}")
        graph.outputs.append(made[name])


def project(
    model: ir.Model, hidden: Hidden, value: Array, teacher_value: Array, index: int, seed: int
) -> str:
    """The name of the student's value with the teacher's width: a projection if they differ.

    `value` and `teacher_value` are the values for one batch. The projection is added to the model,
    in place.
    """
    axis = 1 if value.ndim == _CHANNELS_RANK else value.ndim - 1
    pairs = enumerate(zip(value.shape, teacher_value.shape))
    is_equal = all(m == n for at, (m, n) in pairs if at != axis)
    if value.ndim != teacher_value.ndim or value.ndim < 2 or not is_equal:
        raise OptionError(
            f"the student's {hidden.student!r} has shape {value.shape}, "
            f"the teacher's {hidden.teacher!r} {teacher_value.shape}\n"
            "choose values that differ only in width"
        )
    width, wanted = value.shape[axis], teacher_value.shape[axis]
    if width == wanted:
        return hidden.student
    if not hidden.projected:
        raise OptionError(
            f"the student's {hidden.student!r} has width {width}, "
            f"the teacher's {hidden.teacher!r} {wanted}\n"
            "remove projected=False: a projection is then trained; it is not exported"
        )
    rng = np.random.default_rng([seed, index])
    weight = (rng.normal(size=(width, wanted)) / np.sqrt(width)).astype(value.dtype)
    op = extend(model)
    x = next(each for each in model.graph.outputs if each.name == hidden.student)
    name = f"{PROJECTION}.{index}"
    if axis == 1 and value.ndim == _CHANNELS_RANK:
        made = op.Conv(x, op.initializer(name, weight.T[:, :, None, None].copy()))
    else:
        made = op.MatMul(x, op.initializer(name, weight))
    made.name = projected = f"{name}.output"
    model.graph.outputs.append(made)
    return projected
