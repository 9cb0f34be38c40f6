"""Types and shapes behind operators that ONNX does not know: their rules' formulas say them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.graph.shapes.node_inference import infer_outputs


def make_known(op: GradientOps, nodes: Sequence[ir.Node]) -> None:
    """Write onto every output what its node's inputs and its rule's formula tell."""
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
                _told_by(forward, op, node)
            elif schema is not None:
                infer_outputs(node, schema)
        except ValueError:
            continue  # whoever needs to know says so, with the node


def _told_by(forward: object, op: GradientOps, node: ir.Node) -> None:
    """Write the formula into a graph that is thrown away."""
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
