"""Find the linear layers of a model: MatMul, Gemm, Conv and Attention with their weights.

A weight is an initializer. Exporters write Identity, Cast, Transpose and Reshape between it and its
layer, weights in Constant nodes, and layers in functions: `prepare_layers` and `layer_of` see
through them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.dtypes import FLOATS
from onward.graph.scopes import COMPOSITES
from onward.passes.exporters.constant_weights import lift_constant_weights
from onward.passes.exporters.provenance import sources
from onward.passes.normalize import (
    drop_initializer_inputs,
    inline_functions,
    name_values,
    sort_nodes,
    unify_default_domain,
)
from onward.passes.pipelines import PREPARE
from onward.passes.rewrite import nodes_of
from onward.passes.value_facts import attribute, input_of, ints, made_by
from onward.programs.select import matching

_CONTRIB = "com.microsoft"
_PASSED = ("Identity", "Cast", "Transpose", "Reshape")  # between a weight and its layer


@dataclass(frozen=True)
class LinearLayer:
    """A node that multiplies by a weight.

    Attributes:
        node: the node
        weight: the initializer
        shape: of the weight as a matrix or a kernel; the initializer's, unless it is reshaped
        out_first: whether that has the outputs first, (out, in), or last, (in, out)
        dtype: the type in which the node reads the weight
        is_product: whether the node's result is a linear function of the weight, with the data as
            its first input; Attention, and MatMul(weight, x), are not
    """

    node: ir.Node
    weight: ir.Value
    shape: tuple[int, ...]
    out_first: bool
    dtype: ir.DataType
    is_product: bool

    @property
    def is_conv(self) -> bool:
        return self.node.op_type == "Conv"


def prepare_layers(model: ir.Model) -> ir.Model:
    """A copy of a model with its layers in the main graph and its weights as initializers."""
    copy = drop_initializer_inputs(sort_nodes(unify_default_domain(model.clone())))
    called = [each for each in copy.functions.values() if each.domain != COMPOSITES]
    opset = copy.opset_imports[""]
    if any(function.opset_imports.get("", opset) != opset for function in called):
        copy = PREPARE(copy)  # which brings all nodes to one opset, the newest
    elif called:
        copy = name_values(inline_functions(copy))
        for node in nodes_of(copy):
            node.version = None  # the model's, for all
    return lift_constant_weights(copy)


def find_layers(model: ir.Model, targets: Sequence[str]) -> list[list[LinearLayer]]:
    """The linear layers whose weights or nodes match, those of one weight together."""
    layers: dict[ir.Value, list[LinearLayer]] = {}
    for node in model.graph:
        layer = layer_of(node)
        if layer is not None and layer.weight.graph is model.graph:
            layers.setdefault(layer.weight, []).append(layer)
    if not layers:
        raise OptionError(
            "the model has no linear layer that can be fine-tuned\n"
            "that is a MatMul, Gemm, Conv (not grouped) or Attention whose weights are float "
            "initializers of the main graph"
        )
    names = {
        weight: [
            *(str(weight.name), *sources(weight)),
            *(str(each.node.name) for each in found if each.node.name),
        ]
        for weight, found in layers.items()
    }
    known = [name for listed in names.values() for name in listed]
    chosen = set(matching(known, targets, "targets", "linear layer"))
    return [layers[weight] for weight, listed in names.items() if not chosen.isdisjoint(listed)]


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
    value, dtype, shape = input_of(node, index), None, None
    while value is not None and not value.is_initializer():
        maker = made_by(value, *_PASSED)
        if maker is None:
            return None
        if maker.op_type == "Cast" and dtype is None:
            dtype = ir.DataType(attribute(maker, "to"))
        if maker.op_type == "Transpose":
            swapped = list(attribute(maker, "perm", [1, 0])) == [1, 0]
            if not swapped or shape is not None or node.op_type == "Conv":
                return None
            out_first = not out_first
        if maker.op_type == "Reshape" and shape is None:
            shape = ints(input_of(maker, 1))
            if shape is None or node.op_type == "Conv":
                return None
        value = maker.inputs[0]
    if value is None or value.const_value is None or value.dtype not in FLOATS:
        return None
    held = tuple(value.const_value.shape.numpy())
    sizes = held if shape is None else _resolve_shape(shape, held)
    if len(sizes) < 3 if node.op_type == "Conv" else len(sizes) != 2:
        return None
    dtype = dtype or value.const_value.dtype
    return LinearLayer(node, value, sizes, out_first, dtype, is_product)


def _resolve_shape(shape: Sequence[int], held: Sequence[int]) -> tuple[int, ...]:
    """The shape that Reshape makes: 0 copies a size, -1 is what is left."""
    sizes = [held[i] if size == 0 and i < len(held) else size for i, size in enumerate(shape)]
    known = math.prod(size for size in sizes if size != -1)
    return tuple(math.prod(held) // max(known, 1) if size == -1 else size for size in sizes)


def all_readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, directly or behind what exporters write in between."""
    found: list[ir.Node] = []
    for node, _ in value.uses():
        passed = node.domain == "" and node.op_type in _PASSED
        if passed and not node.outputs[0].is_graph_output():
            found += all_readers(node.outputs[0])
        else:
            found.append(node)
    return found
