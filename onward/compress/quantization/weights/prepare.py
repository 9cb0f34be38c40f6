"""Prepare a model for weights of few bits: in the newest opset, simplified, every node named."""

from __future__ import annotations

import onnx_ir as ir

from onward.compress.quantization.node_names import name_nodes
from onward.graph.files import weight_bytes
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import BASIC, PREPARE
from onward.passes.rewrite import Ops, Rules, rewrite
from onward.passes.value_facts import constant, made_by, rank, static

LARGEST_IN_MEMORY = 2 << 30  # bytes of weights of a model that is simplified and run

_fusible = Rules()


@_fusible("Mul")
def _divide(op: Ops, node: ir.Node) -> ir.Value | None:
    """x * Reciprocal(y) = x / y, which onnxruntime knows in RMS norms"""
    for x, factor in (node.inputs, reversed(node.inputs)):
        maker = made_by(factor, "Reciprocal")
        if maker is not None:
            return op.Div(x, maker.inputs[0])
    return None


@_fusible("Add", "Gemm")
def _flatten_bias(op: Ops, node: ir.Node) -> ir.Value | None:
    """x + b with b of shape (1, n) = x + b of shape (n,), which onnxruntime fuses with products"""
    place = 2 if node.op_type == "Gemm" else 1
    if len(node.inputs) <= place or (place == 1 and made_by(node.inputs[0], "MatMul") is None):
        return None
    bias, shape = node.inputs[place], static(node.inputs[place])
    numbers = constant(bias) if shape is not None and len(shape) == 2 and shape[0] == 1 else None
    if numbers is None or (rank(node.outputs[0]) or 0) < 2:
        return None
    given = [*node.inputs[:place], op.constant(numbers.reshape(-1))]
    return op.one(node.op_type, *given, **{a.name: a.value for a in node.attributes.values()})


def prepare(model: ir.Model) -> ir.Model:
    """A model in the newest opset, without what can be computed before; its weights stay mapped."""
    model = PREPARE(model)
    if weight_bytes(model) <= LARGEST_IN_MEMORY:
        model = BASIC(model)
        rewrite(model, _fusible)
    drop_unused(model)
    name_nodes(model)
    return model
