"""Keep Dropout nodes in artifacts where onnxruntime or evaluation mode would remove them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.graph_ops import extend
from onward.graph.scopes import walk
from onward.passes.drop_unused import drop_unused
from onward.passes.training_mode import eval_mode
from onward.passes.value_facts import input_of, is_constant

_MODE_SINCE = 12  # the opset in which Dropout's mode became an input


def keep_training_dropout(model: ir.Model, flag: str) -> ir.Model:
    """Compute the mode and ratio of Dropout from an input of bool [1], in place.

    onnxruntime removes a Dropout whose mask is unused and whose mode is a constant, also in
    training mode.
    """
    graph = model.graph
    nodes = [node for node in walk(graph) if _is_training(node) and not _has_used_mask(node)]
    if nodes:
        op = extend(model)
        given = next(value for value in graph.inputs if value.name == flag)
        now = op.Squeeze(given, [0])
        always = op.Or(now, op.Not(now))
        one = op.Cast(always, to=int(ir.DataType.FLOAT))
        for node in nodes:
            ratio = input_of(node, 1) or op.constant(np.array(0.5, np.float32))
            node.replace_input_with(1, op.Mul(op.cast_like(one, ratio), ratio))
            node.replace_input_with(2, always)
        graph.sort()
    return drop_unused(model)


def eval_mode_with_dropout(model: ir.Model) -> None:
    """Switch a model to evaluation mode, in place, but keep its Dropout nodes, without a mode.

    Users look for them in eval models, as in the peer's; onnxruntime runs them as copies.
    """
    nodes: list[ir.Node] = []
    if model.opset_imports.get("", 1) >= _MODE_SINCE:
        nodes = [n for n in model.graph if n.op_type == "Dropout" and not n.domain]
        nodes = [node for node in nodes if not _has_used_mask(node)]
    for node in nodes:
        node.resize_inputs(3)
        node.replace_input_with(2, None)
        node.domain = "onward.kept"  # eval_mode removes only Dropout of the default domain
    eval_mode(model)
    for node in nodes:
        node.domain = ""


def _is_training(node: ir.Node) -> bool:
    return node.op_type == "Dropout" and len(node.inputs) > 2 and is_constant(node.inputs[2])


def _has_used_mask(node: ir.Node) -> bool:
    return any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:])
