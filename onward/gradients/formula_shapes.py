"""Infer the output shapes of operators without an ONNX schema from their rules' formulas."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.graph.shapes.node_inference import infer_outputs


def infer_from_formulas(op: GradientOps, nodes: Sequence[ir.Node]) -> None:
    """Set missing types and shapes of outputs, from schemas and from rules' formulas."""
    for node in nodes:
        named = [y for y in node.outputs if y.name]
        if all(y.type is not None and y.shape is not None for y in named):
            continue
        if any(x is not None and x.type is None for x in node.inputs):
            continue
        forward = getattr(
            op.rules.find(node.domain, node.op_type, op.opset(node.domain)), "forward", None
        )
        schema = _schema(op, node)
        try:
            if forward is not None:
                _infer_from(forward, op, node)
            elif schema is not None:
                infer_outputs(node, schema)
        except ValueError:
            continue  # a rule that needs the shape raises an error with the node


def _infer_from(forward: object, op: GradientOps, node: ir.Node) -> None:
    """Copy types and shapes from the formula, which is written into a temporary graph."""
    assert callable(forward)
    scratch = op.inside(ir.Graph((), (), nodes=(), name="scratch"))
    written = forward(scratch, node)
    ys = [written] if isinstance(written, ir.Value) else written
    for y, like in zip(node.outputs, ys):
        if like is not None and (y.type is None or y.shape is None):
            y.type, y.shape = like.type, like.shape
    scratch.graph.remove(list(scratch.graph), safe=True)


def _schema(op: GradientOps, node: ir.Node) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(node.op_type, op.opset(node.domain), node.domain)
    except onnx.defs.SchemaError:
        return None
