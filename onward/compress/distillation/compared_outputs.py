"""Choose which outputs of a student are compared with which values of its teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.compress.distillation.lessons import StudentTeacherPair
from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.scopes import origin, standard
from onward.message_text import list_names, suggest_names
from onward.passes.value_facts import attribute

Pairs = Mapping[str, "str | Sequence[str]"]


def make_pairs(
    student: ir.Model,
    teachers: Sequence[ir.Model],
    pairs: Pairs | None,
    losses: str | Mapping[str, str],
) -> list[StudentTeacherPair]:
    """The student's outputs with the teachers' and their losses.

    With "kl", an output that is a Softmax is replaced by its input, the logits.
    """
    chosen = _by_name(student, teachers) if pairs is None else _given(student, teachers, pairs)
    if not isinstance(losses, str):
        if unknown := [name for name in losses if name not in chosen]:
            hint = suggest_names(unknown[0], chosen, "they are")
            raise OptionError(f"loss: {unknown[0]!r} is not one of the compared outputs\n{hint}")
        chosen = {name: others for name, others in chosen.items() if name in losses}
    found = []
    for name, others in chosen.items():
        loss = losses if isinstance(losses, str) else losses[name]
        if loss != "kl":
            found.append(StudentTeacherPair(name, others, loss, name, others))
            continue
        inner = [logits_name(m, other) for m, other in zip(teachers, others, strict=True)]
        found.append(StudentTeacherPair(logits_name(student, name), inner, loss, name, others))
    return found


def logits_name(model: ir.Model, name: str) -> str:
    """The value before a Softmax, if the output is one; else the output."""
    output = next(value for value in model.graph.outputs if value.name == name)
    value = origin(output, standard({"Identity"}))
    node = value.producer()
    if node is None or node.op_type != "Softmax" or node.domain:
        return name
    x = node.inputs[0]
    axis = attribute(node, "axis", -1 if model.opset_imports.get("", 13) >= 13 else 1)
    rank = len(value.shape) if value.shape is not None else None
    is_last = axis == -1 or (rank is not None and axis == rank - 1)
    has_name = x is not None and x.name is not None and x.producer() is not None
    return str(x.name) if is_last and x is not None and has_name else name


def _by_name(student: ir.Model, teachers: Sequence[ir.Model]) -> dict[str, list[str]]:
    mine = _float_outputs(student)
    theirs = [_float_outputs(teacher) for teacher in teachers]
    shared = [name for name in mine if all(name in each for each in theirs)]
    if shared:
        return {name: [name] * len(teachers) for name in shared}
    if len(mine) == 1 and all(len(each) == 1 for each in theirs):
        return {mine[0]: [each[0] for each in theirs]}
    raise OptionError(
        f"no output of the student ({list_names(mine)}) has the same name as an output of the "
        f"teacher ({list_names(theirs[0])})\ngive pairs={{student's output: teacher's output}}"
    )


def _given(student: ir.Model, teachers: Sequence[ir.Model], pairs: Pairs) -> dict[str, list[str]]:
    if not pairs:
        raise OptionError("pairs is empty: name at least one output of the student")
    found = {}
    for name, given in pairs.items():
        others = [given] * len(teachers) if isinstance(given, str) else list(given)
        if len(others) != len(teachers):
            raise OptionError(
                f"pairs: {name!r} needs a name for each of the {len(teachers)} teachers"
            )
        owners = [("student", student, name)]
        owners += [("teacher", model, other) for model, other in zip(teachers, others)]
        for owner, model, wanted in owners:
            known = [str(value.name) for value in model.graph.outputs]
            if wanted not in known:
                hint = suggest_names(wanted, known, "it has")
                raise OptionError(f"the {owner} has no output {wanted!r}\n{hint}")
        found[name] = others
    return found


def _float_outputs(model: ir.Model) -> list[str]:
    return [str(v.name) for v in model.graph.outputs if v.dtype is None or v.dtype in FLOATS]
