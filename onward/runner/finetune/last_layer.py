"""Find the last linear layer of a model, and adjust what follows it to other numbers of outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.scopes import reads
from onward.graph.shapes.infer import infer_shapes
from onward.message_text import suggest_names
from onward.passes.rewrite import Names
from onward.passes.value_facts import Array, input_of, ints, made_by
from onward.runner.finetune.linear_layers import LinearLayer, layer_of

# what may follow the last layer, because it works for any number of outputs
_PASSED = {
    *("Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "Relu", "LeakyRelu", "Clip"),
    *("Softplus", "Identity", "Cast", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze"),
    *("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean", "ReduceMax"),
}


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer, the Add of its bias and the nodes between it and the output."""

    layer: LinearLayer
    bias: tuple[ir.Node, int] | None  # the Add and which of its inputs
    behind: tuple[ir.Node, ...]

    @property
    def axis(self) -> int:
        """Along which the outputs are counted, from the layer to the model's output."""
        return 1 if self.layer.is_conv else -1


def find_output(model: ir.Model, name: str | None) -> ir.Value:
    found = {str(value.name): value for value in model.graph.outputs}
    if name is None:
        return model.graph.outputs[0]
    if name not in found:
        raise OptionError(f"the model has no output {name!r}\n{suggest_names(name, found)}")
    return found[name]


def find_last_layer(output: ir.Value) -> LastLayer:
    """Follow an output back to the linear layer that makes it."""
    value, behind = output, list[ir.Node]()
    while (node := value.producer()) is not None:
        layer = layer_of(node)
        if layer is not None and layer.is_product:
            return LastLayer(layer, None, tuple(behind))
        if node.op_type == "Add" and node.domain == "":
            for index in (0, 1):
                bias, inner = node.inputs[index], made_by(node.inputs[1 - index], "MatMul", "Conv")
                layer = None if inner is None else layer_of(inner)
                if bias is not None and bias.is_initializer() and layer and layer.is_product:
                    return LastLayer(layer, (node, index), tuple(behind))
        first = input_of(node, 0)
        if first is None or node.domain or node.op_type not in _PASSED:
            break
        behind.append(node)
        value = first
    maker = "an input" if node is None else f"{node.op_type} (node {node.name!r})"
    raise OptionError(
        f"output {output.name!r} has no last linear layer: going back from it, {maker} comes "
        "before any Gemm, MatMul or Conv with weights\n"
        "name another output, or add a layer behind it: add_head"
    )


def add_initializer(model: ir.Model, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.val(name, dtype=tensor.dtype, shape=ir.Shape(array.shape), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def resize_reshape(model: ir.Model, node: ir.Node, axis: int, before: int, after: int) -> None:
    """Replace the number of outputs in the shape that a Reshape has, constant or a Concat."""
    sizes, joined = ints(input_of(node, 1)), made_by(input_of(node, 1), "Concat")
    names = Names(model)
    if sizes is not None and before in sizes:
        place = axis if sizes[axis] == before else sizes.index(before)
        sizes[place] = after
        array = np.array(sizes, np.int64)
        node.replace_input_with(1, add_initializer(model, names.fresh("head.shape"), array))
    elif joined is not None:
        for index, value in enumerate(joined.inputs):
            if ints(value) == [before]:
                size = add_initializer(model, names.fresh("head.size"), np.array([after]))
                joined.replace_input_with(index, size)


def update_shapes(model: ir.Model, path: LastLayer, before: int, after: int) -> None:
    """Infer the shapes of all values that depend on the layer; outputs keep their other sizes."""
    on_path = {node.outputs[0] for node in (path.layer.node, *path.behind)}
    on_path |= {path.bias[0].outputs[0]} if path.bias else set()
    changed: set[ir.Value] = set()
    for node in model.graph:
        if node is path.layer.node or not changed.isdisjoint(reads(node)):
            changed.update(node.outputs)
    for value in changed:
        sizes: list[Any] = [] if value.shape is None else list(value.shape)
        value.shape = None
        if sizes and value in on_path and value.is_graph_output():
            sizes[path.axis] = after if sizes[path.axis] == before else None
            value.shape = ir.Shape(sizes)
    infer_shapes(model)
