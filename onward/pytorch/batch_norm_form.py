"""Write captured BatchNormalization that trains in its inference form.

A trace in training mode has the statistics of the batch and formulas for the running ones. In a
model file, BatchNormalization reads its running statistics, and training mode is what a training
session puts it into (`onward.passes.training_mode`); evaluation and export then use the statistics.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onward.passes.drop_unused import drop_unused
from onward.passes.training_mode import MEAN, VAR
from onward.passes.value_facts import made_by
from onward.pytorch.fallback import CannotCapture


def restore_batch_norms(
    model: ir.Model, tensors: Mapping[str, str], changes: Mapping[str, str]
) -> dict[str, str]:
    """Rewrite BatchNormalization in place; return the changes of other buffers.

    `tensors`: input -> the tensor of the module; `changes`: output -> the buffer that it replaces.
    """
    nodes = [node for node in model.graph if _trains(node)]
    statistics: set[str] = set()
    for node in nodes:
        momentum = _momentum(node)
        for index in (MEAN, VAR):
            running = _running(node, index)
            statistics.add(tensors[str(running.name)])
            node.replace_input_with(index, running)
        node.attributes["momentum"] = ir.AttrFloat32("momentum", 1.0 - momentum)
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
    others = {output: of for output, of in changes.items() if of not in statistics}
    gone = changes.keys() - others.keys()
    model.graph.outputs[:] = [v for v in model.graph.outputs if v.name not in gone]
    drop_unused(model)
    for node in nodes:
        if any(value.uses() for value in node.outputs[1:]):
            raise CannotCapture(
                "it reads the running statistics of a BatchNorm after it updated them"
            )
        node.resize_outputs(1)
    return others


def _trains(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and mode is not None and mode.as_int() == 1


def _running(node: ir.Node, index: int) -> ir.Value:
    """The buffer of running statistics that a node updates."""
    copied = made_by(node.inputs[index], "CastLike")
    value = None if copied is None else copied.inputs[1]
    while value is not None and not value.is_graph_input():  # the layer was called before
        kept = made_by(value, "Add")
        scaled = None if kept is None else made_by(kept.inputs[0], "Mul")
        value = None if scaled is None else scaled.inputs[0]
    if value is None:
        raise CannotCapture("the running statistics of a BatchNorm are not a buffer of the module")
    return value


def _momentum(node: ir.Node) -> float:
    """How much of the batch's mean enters the running mean."""
    for reader, index in node.outputs[1].uses():
        share = reader.inputs[1 - index] if reader.op_type == "Mul" else None
        constant = None if share is None else ir.convenience.get_const_tensor(share)
        if constant is not None and constant.size == 1:
            return float(constant.numpy())
    raise CannotCapture("a BatchNorm has no constant momentum")
