"""Models of one node, which engines compile to show whether they support it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.graph.scopes import reads

_IR_VERSION = 12  # the newest that stock engines load


def node_signature(node: ir.Node) -> tuple[Any, ...] | None:
    """A node's operator, types and attributes as a cache key; None if a type is unknown."""
    types = []
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type is None and value.name:
            return None
        types.append(str(value.type) if value is not None and value.name else "")
    return (node.domain, node.op_type, *types, *map(str, node.attributes.values()))


def single_node_model(
    node: ir.Node, opsets: dict[str, int], *, constants_up_to: int = -1
) -> ir.Model:
    """A model of one node; the values that it and its subgraphs read become inputs.

    Constants of at most `constants_up_to` bytes stay constants.
    """
    graph = node.graph
    assert graph is not None
    outputs = [value for value in node.outputs if value.name]
    inputs = [
        value
        for value in reads(node)
        if value.graph is graph and not _stays_constant(value, constants_up_to)
    ]
    model = ir.convenience.extract(graph, inputs, outputs)
    model.opset_imports.update(opsets)
    return ir.Model(model, ir_version=_IR_VERSION)


def _stays_constant(value: ir.Value, constants_up_to: int) -> bool:
    constant = value.const_value if value.is_initializer() else None
    return constant is not None and constant.nbytes <= constants_up_to
