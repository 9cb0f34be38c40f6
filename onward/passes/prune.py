"""Dead code: nodes, optional outputs and initializers that nobody reads."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from onward.graph.scopes import bodies, graphs_of
from onward.passes.composites import is_call
from onward.passes.normalize import trim
from onward.passes.rewrite import release
from onward.passes.value_facts import attribute


def drop_unused(model: ir.Model) -> ir.Model:
    """Remove what no graph output depends on; the graph's inputs and outputs stay."""
    drop_nodes(model.graph, model.opset_imports.get("", 1))
    for graph in graphs_of(model):
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
    return model


def drop_nodes(graph: ir.Graph, opset: int) -> None:
    """Remove the nodes, and the optional outputs of others, that no output of a graph needs."""
    dead = []
    for node in reversed(graph):
        if not any(_is_read(value) for value in node.outputs):
            release(node)
            dead.append(node)
            continue
        if len(node.outputs) > 1 or None in node.inputs[-1:]:  # of the others nothing can go
            _omit_outputs(node, opset)
        for body in bodies(node):  # after: what a body reads lies before the node
            drop_nodes(body, opset)
    graph.remove(dead)


def _omit_outputs(node: ir.Node, opset: int) -> None:
    if is_call(node):  # a body need not make what nobody reads
        for value in node.outputs:
            if not _is_read(value):
                value.name = ""
        trim(node)
        return
    if node.domain != "":
        return
    if node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0):
        return  # in training it must have all of them
    optional = _optional_outputs(node.op_type, opset)
    for index, value in enumerate(node.outputs):
        if index in optional and not _is_read(value):
            value.name = ""
    trim(node)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


@functools.cache
def _optional_outputs(operator: str, opset: int) -> frozenset[int]:
    try:
        outputs = onnx.defs.get_schema(operator, opset, "").outputs
    except onnx.defs.SchemaError:
        return frozenset()
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return frozenset(i for i, formal in enumerate(outputs) if formal.option == optional)
