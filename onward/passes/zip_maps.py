"""ZipMap makes a list of maps of a tensor, row by row; whoever computes looks through it."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.shapes.ml_operators import DOMAIN


def zipped_tensor(value: ir.Value) -> ir.Value | None:
    """The tensor that a list of maps is made from; None: it is no such list."""
    node = value.producer()
    if node is None or node.domain != DOMAIN or node.op_type != "ZipMap":
        return None
    return node.inputs[0]


def unzipped(value: ir.Value) -> ir.Value:
    """The tensor that a list of maps is made from; any other value as it is."""
    tensor = zipped_tensor(value)
    return value if tensor is None else tensor
