"""Find the tensor behind a ZipMap, which makes a list of maps, one for each row."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.shapes.ml_operators import DOMAIN


def zipped_tensor(value: ir.Value) -> ir.Value | None:
    """The input of the ZipMap that makes a value; None if no ZipMap makes it."""
    node = value.producer()
    if node is None or node.domain != DOMAIN or node.op_type != "ZipMap":
        return None
    return node.inputs[0]


def unzipped(value: ir.Value) -> ir.Value:
    """The input of the ZipMap that makes a value; any other value unchanged."""
    tensor = zipped_tensor(value)
    return value if tensor is None else tensor
