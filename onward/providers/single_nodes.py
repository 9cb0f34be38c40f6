"""Nodes by themselves: what an engine is shown to find out whether it can run them."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.graph.scopes import reads

_IR_VERSION = 12  # the newest that stock engines load


def kind(node: ir.Node) -> tuple[Any, ...] | None:
    """Operator, types and attributes, by which most engines decide; None: a type is not known."""
    types = []
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type is None and value.name:
            return None
        types.append(str(value.type) if value is not None and value.name else "")
    return (node.domain, node.op_type, *types, *map(str, node.attributes.values()))


def alone(node: ir.Node, opsets: dict[str, int], *, constants_up_to: int = -1) -> ir.Model:
    """A model of one node; what it reads, its subgraphs included, comes in as inputs.

    Constants of at most `constants_up_to` bytes stay constants.
    """
    graph = node.graph
    assert graph is not None
    outputs = [value for value in node.outputs if value.name]
    inputs = [
        value
        for value in reads(node)
        if value.graph is graph and not _stays(value, constants_up_to)
    ]
    model = ir.convenience.extract(graph, inputs, outputs)
    model.opset_imports.update(opsets)
    return ir.Model(model, ir_version=_IR_VERSION)


def _stays(value: ir.Value, constants_up_to: int) -> bool:
    constant = value.const_value if value.is_initializer() else None
    return constant is not None and constant.nbytes <= constants_up_to
