"""Remove unused nodes, optional outputs and initializers."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from onward.graph.scopes import bodies, graphs_of
from onward.passes.composites import is_call
from onward.passes.normalize import drop_trailing_omitted
from onward.passes.rewrite import detach_with_subgraphs
from onward.passes.value_facts import attribute


def drop_unused(model: ir.Model) -> ir.Model:
    """Remove everything that no graph output depends on; the graph's inputs and outputs stay."""
    drop_nodes(model.graph, model.opset_imports.get("", 1))
    for graph in graphs_of(model):
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
    return model


def drop_nodes(graph: ir.Graph, opset: int) -> None:
    """Remove the nodes of a graph that its outputs do not need, and unused optional outputs."""
    dead = []
    for node in reversed(graph):
        if not any(_is_read(value) for value in node.outputs):
            detach_with_subgraphs(node)
            dead.append(node)
            continue
        if len(node.outputs) > 1 or None in node.inputs[-1:]:  # other nodes have nothing to omit
            _omit_outputs(node, opset)
        for body in bodies(node):  # the nodes that a body reads are visited later
            drop_nodes(body, opset)
    graph.remove(dead)


def _omit_outputs(node: ir.Node, opset: int) -> None:
    if is_call(node):  # every output of a call is optional
        for value in node.outputs:
            if not _is_read(value):
                value.name = ""
        drop_trailing_omitted(node)
        return
    if node.domain != "":
        return
    if node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0):
        return  # in training mode all of them are required
    optional = _optional_outputs(node.op_type, opset)
    for index, value in enumerate(node.outputs):
        if index in optional and not _is_read(value):
            value.name = ""
    drop_trailing_omitted(node)


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
