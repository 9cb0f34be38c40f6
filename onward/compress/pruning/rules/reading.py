"""What rules read from a node."""

from __future__ import annotations

import onnx_ir as ir

MICROSOFT = "com.microsoft"


def given(node: ir.Node, place: int) -> ir.Value | None:
    """A node's input, None where it is absent."""
    return node.inputs[place] if place < len(node.inputs) else None
