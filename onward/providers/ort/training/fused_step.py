"""Fuse a training step into one graph: forward, loss, backward, and the updates if all is finite.

The updates read the gradients from the memory that the same run has written: their inputs and the
outputs of `train` are bound to it. They are in a branch of an If that runs after all outputs of
`train`; the other branch, for gradients that are not finite, leaves every tensor unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onward.optimizers.clip import NORM
from onward.programs.program import LOSS
from onward.providers.ort.training.lowered import MEASURE, UPDATE, UPDATED, LoweredUpdate


def fuse_step(train: bytes, updates: Sequence[LoweredUpdate], flat: Sequence[bool]) -> bytes:
    """The train graph followed by the updates; `flat`: whether each of them updates vectors.

    Inputs and outputs keep their names, those of an update with the prefix `update_{i}/`. The
    additional output UPDATED is whether the updates were made.
    """
    model = onnx.load_from_string(train)
    graph = model.graph
    later = [add_prefix(onnx.load_from_string(each.bound), i) for i, each in enumerate(updates)]
    replaced: dict[str, onnx.ValueInfoProto] = {}  # input -> the output that replaces it
    for i, (each, is_flat) in enumerate(zip(later, flat)):
        prefix = UPDATE.format(i)
        replaced |= {_replaced(v.name, prefix, is_flat): v for v in each.graph.output}
        norm = f"{prefix}{NORM}"
        graph.input.extend(v for v in each.graph.input if v.name != norm)
        if any(v.name == norm for v in each.graph.input):  # the train graph's measure is this norm
            cast = helper.make_node("Cast", [MEASURE], [norm], to=TensorProto.DOUBLE)
            nodes = [cast, *each.graph.node]
            del each.graph.node[:]
            each.graph.node.extend(nodes)
    given = list(replaced.values())
    then = merge_into_branch([each.graph for each in later], given, "update/")
    kept = _kept(replaced, list(graph.output))
    _add_flag(graph)
    chosen = [value.name for value in given]
    graph.node.append(
        helper.make_node("If", [UPDATED], chosen, "update", then_branch=then, else_branch=kept)
    )
    graph.output.append(helper.make_tensor_value_info(UPDATED, TensorProto.BOOL, []))
    graph.output.extend(given)
    imports = merge_opset_imports(*later, model)
    del model.opset_import[:]
    model.opset_import.extend(imports)
    data: bytes = model.SerializeToString()
    return data


def _kept(
    replaced: Mapping[str, onnx.ValueInfoProto], results: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    """The branch without an update: every tensor unchanged.

    It reads an empty slice of every output of `train`. So the If runs after all nodes that read
    parameters or write gradients, even if the engine has reordered the graph.
    """
    body = onnx.GraphProto(name="keep")

    def add(kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"keep/{len(body.node)}"
        body.node.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    for name, numbers in (("all", [-1]), ("none", [0])):
        tensor = numpy_helper.from_array(np.array(numbers, np.int64), f"keep/{name}")
        body.initializer.append(tensor)
    for i, (old, new) in enumerate(replaced.items()):
        kept = old
        if i == 0:
            kind = new.type.tensor_type.elem_type
            parts = [add("Reshape", [old, "keep/all"])]
            for result in results:
                flat = add("Reshape", [result.name, "keep/all"])
                none = add("Slice", [flat, "keep/none", "keep/none"])
                parts.append(add("Cast", [none], to=kind))
            kept = add("Reshape", [add("Concat", parts, axis=0), add("Shape", [old])])
        body.node.append(helper.make_node("Identity", [kept], [f"keep/{new.name}"]))
        body.output.add().CopyFrom(new)
        body.output[-1].name = f"keep/{new.name}"
    return body


def _replaced(output: str, prefix: str, flat: bool) -> str:
    """The input that an output of an update replaces."""
    return prefix + output.removeprefix(f"{prefix}new_") if flat else output.removesuffix(".new")


def _add_flag(graph: onnx.GraphProto) -> None:
    """Add UPDATED: whether loss and gradients are finite; false if their sum overflows."""
    limit = numpy_helper.from_array(np.array(np.inf, np.float32), "onward.infinite")
    graph.initializer.append(limit)
    graph.node.extend(
        [
            helper.make_node("Cast", [LOSS], ["onward.loss32"], to=TensorProto.FLOAT),
            helper.make_node("Add", [MEASURE, "onward.loss32"], ["onward.sum"]),
            helper.make_node("Abs", ["onward.sum"], ["onward.size"]),
            helper.make_node("Less", ["onward.size", limit.name], [UPDATED]),
        ]
    )


def merge_opset_imports(*models: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    """The opset imports of several models; where versions differ, the last model's."""
    opsets = {each.domain: each.version for model in models for each in model.opset_import}
    return [helper.make_opsetid(domain, version) for domain, version in opsets.items()]


def add_prefix(model: onnx.ModelProto, i: int) -> onnx.ModelProto:
    """Prefix the names of an update, and of its symbolic dimensions."""
    prefix = UPDATE.format(i)
    model = onnx.compose.add_prefix(model, prefix)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = prefix + size.dim_param
    return model


def merge_into_branch(
    graphs: Sequence[onnx.GraphProto], outputs: Sequence[onnx.ValueInfoProto], inside: str
) -> onnx.GraphProto:
    """Graphs as one branch with all `outputs`: zeros for those that the graphs do not compute.

    Values that the branch computes get the prefix `inside`; others keep their names.
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
    """Prefix the names of values that the branch computes, also in subgraphs."""
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
    """Add a scalar zero of this name."""
    blank: list[Any] = [""] if kind == onnx.TensorProto.STRING else [0]
    zero = helper.make_tensor("", kind, [], blank)
    body.node.append(helper.make_node("Constant", [], [name], value=zero))
    return helper.make_tensor_value_info(name, kind, [])
