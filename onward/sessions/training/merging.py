"""The graphs of a step as branches of one graph: one session, whose threads serve both.

Two sessions would each have threads of their own, and those of the one wait, spinning, on the cores
that the other needs. `phase` says which branch runs; results of the other are single zeros, which
nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from onward.sessions.training.program import PHASE, UPDATE

_INSIDE = ("train/", "update/")  # before the names that a branch makes


def merge(train: bytes, updates: Sequence[bytes]) -> bytes:
    """A graph that runs `train` where `phase` is true, and all of the updates where it is not.

    Inputs and outputs keep their names, those of an update behind `update_{i}/`.
    """
    first = onnx.load_from_string(train)
    later = [prefixed(onnx.load_from_string(data), i) for i, data in enumerate(updates)]
    branches = [[first.graph], [each.graph for each in later]]
    outputs = [value for graphs in branches for graph in graphs for value in graph.output]
    bodies = [branch(graphs, outputs, inside) for graphs, inside in zip(branches, _INSIDE)]
    chosen = helper.make_node(
        "If", [PHASE], [value.name for value in outputs], "step",
        then_branch=bodies[0], else_branch=bodies[1],
    )  # fmt: skip
    fed = [_loose(value) for each in later for value in each.graph.input]
    graph = helper.make_graph(
        [chosen],
        "step",
        [helper.make_tensor_value_info(PHASE, onnx.TensorProto.BOOL, []), *first.graph.input, *fed],
        [_loose(value) for value in outputs],
    )
    model = helper.make_model(
        graph, opset_imports=imports_of(*later, first), ir_version=first.ir_version
    )
    data: bytes = model.SerializeToString()
    return data


def imports_of(*models: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    """The operator sets of several models; where they differ, the last one's."""
    opsets = {each.domain: each.version for model in models for each in model.opset_import}
    return [helper.make_opsetid(domain, version) for domain, version in opsets.items()]


def prefixed(model: onnx.ModelProto, i: int) -> onnx.ModelProto:
    """An update with names of its own; those of sizes too, for its `n` is not another's."""
    prefix = UPDATE.format(i)
    model = onnx.compose.add_prefix(model, prefix)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = prefix + size.dim_param
    return model


def branch(
    graphs: Sequence[onnx.GraphProto], outputs: Sequence[onnx.ValueInfoProto], inside: str
) -> onnx.GraphProto:
    """These graphs as a body that has all outputs: zeros for those that it does not make.

    What it makes has names of its own; what comes from outside keeps its name.
    """
    made = {name for graph in graphs for node in graph.node for name in node.output if name}
    made |= {tensor.name for graph in graphs for tensor in graph.initializer}
    body = onnx.GraphProto(name=inside.rstrip("/"))
    for graph in graphs:
        for node in graph.node:
            body.node.append(node)
            _rename(body.node[-1], made, inside)
        for tensor in graph.initializer:
            body.initializer.append(tensor)
            body.initializer[-1].name = inside + tensor.name
    for value in outputs:
        given = body.output.add()
        given.CopyFrom(value)
        given.name = inside + value.name
        if value.name not in made:
            given.CopyFrom(_zero(body, given.name, value.type.tensor_type.elem_type))
    return body


def _rename(node: onnx.NodeProto, made: set[str], inside: str) -> None:
    """Put `inside` before the names that the branch makes, in subgraphs too."""
    for names in (node.input, node.output):
        for i, name in enumerate(names):
            if name in made:
                names[i] = inside + name
    for attribute in node.attribute:
        for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for deeper in inner.node:
                _rename(deeper, made, inside)
            for result in inner.output:
                if result.name in made:
                    result.name = inside + result.name


def _zero(body: onnx.GraphProto, name: str, kind: int) -> onnx.ValueInfoProto:
    """A scalar zero under this name."""
    blank: list[Any] = [""] if kind == onnx.TensorProto.STRING else [0]
    zero = helper.make_tensor("", kind, [], blank)
    body.node.append(helper.make_node("Constant", [], [name], value=zero))
    return helper.make_tensor_value_info(name, kind, [])


def _loose(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The same name and type; the shape is not said."""
    return helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None)
