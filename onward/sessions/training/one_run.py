"""A step as one run of one graph: forward, loss, backward, and the updates if all is finite.

The updates read the gradients where the graph has just written them: their inputs and the outputs
of `train` are bound to the same memory. They stand in a branch that waits for all that `train`
gives; the other branch, taken where something is not finite, leaves every tensor as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onward.optimizers.clip import MARGIN
from onward.sessions.training.merging import branch, imports_of, prefixed
from onward.sessions.training.program import LOSS, MEASURE, UPDATE, UPDATED, Update


def one_run(train: bytes, updates: Sequence[Update], max_norm: float | None) -> bytes:
    """`train`, then the updates, clipped to a norm if one is given.

    Inputs and outputs keep their names, those of an update behind `update_{i}/`; beside them
    UPDATED tells whether the updates were made.
    """
    model = onnx.load_from_string(train)
    graph = model.graph
    later = [prefixed(onnx.load_from_string(each.bound), i) for i, each in enumerate(updates)]
    replaced: dict[str, onnx.ValueInfoProto] = {}  # input -> the output that takes its place
    for i, (each, update) in enumerate(zip(later, updates)):
        if max_norm is not None:
            _clip(each.graph, UPDATE.format(i), max_norm)
        replaced |= {_replaced(v.name, UPDATE.format(i), update.flat): v for v in each.graph.output}
        graph.input.extend(each.graph.input)
    given = list(replaced.values())
    then = branch([each.graph for each in later], given, "update/")
    kept = _kept(replaced, list(graph.output))
    _add_flag(graph)
    chosen = [value.name for value in given]
    graph.node.append(
        helper.make_node("If", [UPDATED], chosen, "update", then_branch=then, else_branch=kept)
    )
    graph.output.append(helper.make_tensor_value_info(UPDATED, TensorProto.BOOL, []))
    graph.output.extend(given)
    imports = imports_of(*later, model)
    del model.opset_import[:]
    model.opset_import.extend(imports)
    data: bytes = model.SerializeToString()
    return data


def _kept(
    replaced: Mapping[str, onnx.ValueInfoProto], results: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    """The other branch: every tensor as it is.

    It reads every result of `train`, no element of it: so whichever branch is taken comes after
    all that reads the parameters and all that writes the gradients, however an engine may have
    rewritten the graph before it.
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
    """The input that an update's output takes the place of."""
    return prefix + output.removeprefix(f"{prefix}new_") if flat else output.removesuffix(".new")


def _add_flag(graph: onnx.GraphProto) -> None:
    """Whether the loss and all gradients are finite; a sum that overflows says no."""
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


def _clip(graph: onnx.GraphProto, prefix: str, max_norm: float) -> None:
    """Multiply the gradients by what ClipByNorm.scale says, beside the scale that is fed."""
    fed, clipped = f"{prefix}gradient_scale", f"{prefix}clipped_scale"
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == fed:
                node.input[i] = clipped
    numbers = {"limit": max_norm, "margin": MARGIN, "one": 1.0}
    for name, number in numbers.items():
        tensor = numpy_helper.from_array(np.array(number, np.float64), f"{prefix}clip.{name}")
        graph.initializer.append(tensor)
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{prefix}clip.{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    share = add("Cast", fed, to=TensorProto.DOUBLE)
    norm = add("Mul", add("Sqrt", add("Cast", MEASURE, to=TensorProto.DOUBLE)), share)
    ratio = add("Div", f"{prefix}clip.limit", add("Add", norm, f"{prefix}clip.margin"))
    scale = add("Mul", add("Min", ratio, f"{prefix}clip.one"), share)
    kind = next(v.type.tensor_type.elem_type for v in graph.input if v.name == fed)
    nodes.append(helper.make_node("Cast", [scale], [clipped], to=kind))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
