"""Find the linear layers of a model: MatMul, Gemm, Conv and Attention with their weights.

A weight is an initializer. Exporters write Identity, Cast and Transpose between it and its layer,
weights in Constant nodes, and layers in functions: `prepare_layers` and `layer_of` see through
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.scopes import COMPOSITES
from onward.passes.exporters.constant_weights import lift_constant_weights
from onward.passes.normalize import (
    inline_functions,
    name_values,
    sort_nodes,
    unify_default_domain,
)
from onward.passes.pipelines import PREPARE
from onward.passes.rewrite import nodes_of
from onward.passes.value_facts import attribute, input_of, made_by

_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class LinearLayer:
    """A node that multiplies by a weight.

    Attributes:
        node: the node
        weight: the initializer
        out_first: whether the initializer has the outputs first, (out, in), or last, (in, out)
        dtype: the type in which the node reads the weight
        is_product: whether the node's result is a linear function of the weight, with the data as
            its first input; Attention, and MatMul(weight, x), are not
    """

    node: ir.Node
    weight: ir.Value
    out_first: bool
    dtype: ir.DataType
    is_product: bool

    @property
    def is_conv(self) -> bool:
        return self.node.op_type == "Conv"


def prepare_layers(model: ir.Model) -> ir.Model:
    """A copy of a model with its layers in the main graph and its weights as initializers."""
    copy = sort_nodes(unify_default_domain(model.clone()))
    called = [each for each in copy.functions.values() if each.domain != COMPOSITES]
    opset = copy.opset_imports[""]
    if any(function.opset_imports.get("", opset) != opset for function in called):
        copy = PREPARE(copy)  # which brings all nodes to one opset, the newest
    elif called:
        copy = name_values(inline_functions(copy))
        for node in nodes_of(copy):
            node.version = None  # the model's, for all
    return lift_constant_weights(copy)


def layer_of(node: ir.Node) -> LinearLayer | None:
    """The linear layer that a node is; None if it is none, or its weight is not an initializer."""
    if node.domain == _CONTRIB and node.op_type == "Attention":
        return _layer(node, 1, out_first=False, is_product=False)
    if node.domain != "":
        return None
    if node.op_type == "Gemm":
        return _layer(node, 1, out_first=bool(attribute(node, "transB", 0)))
    if node.op_type == "Conv" and attribute(node, "group", 1) == 1:
        return _layer(node, 1, out_first=True)
    if node.op_type == "MatMul":
        last = _layer(node, 1, out_first=False)
        return last or _layer(node, 0, out_first=True, is_product=False)
    return None


def _layer(
    node: ir.Node, index: int, *, out_first: bool, is_product: bool = True
) -> LinearLayer | None:
    """The layer whose weight is an input of a node, directly or behind nodes of exporters."""
    value, dtype = input_of(node, index), None
    while value is not None and not value.is_initializer():
        maker = made_by(value, "Identity", "Cast", "Transpose")
        if maker is None:
            return None
        if maker.op_type == "Cast" and dtype is None:
            dtype = ir.DataType(attribute(maker, "to"))
        if maker.op_type == "Transpose":
            if list(attribute(maker, "perm", [1, 0])) != [1, 0] or node.op_type == "Conv":
                return None
            out_first = not out_first
        value = maker.inputs[0]
    if value is None or value.const_value is None or value.dtype not in FLOATS:
        return None
    rank = len(value.const_value.shape)
    if rank < 3 if node.op_type == "Conv" else rank != 2:
        return None
    held = value.const_value.dtype
    return LinearLayer(node, value, out_first, dtype or held, is_product)


def all_readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, directly or behind Identity, Cast and Transpose."""
    found: list[ir.Node] = []
    for node, _ in value.uses():
        passed = node.domain == "" and node.op_type in ("Identity", "Cast", "Transpose")
        if passed and not node.outputs[0].is_graph_output():
            found += all_readers(node.outputs[0])
        else:
            found.append(node)
    return found
