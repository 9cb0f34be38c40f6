"""Weights that are Constant nodes: some exporters, Paddle's among them, write all weights so.

    lift_constant_weights(model)    # w = Constant() that MatMul reads becomes the initializer w

A Constant is a weight where an operator reads it as one: the kernel of a convolution, the scale of
a normalization, a bias that is added to a product. All other Constants are numbers of formulas.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.graph.operators import PRODUCTS, VIEWS
from onward.graph.scopes import walk
from onward.passes.exporters.provenance import Provenance
from onward.passes.normalize import constant_tensor
from onward.passes.value_facts import is_constant, made_by

# which of an operator's inputs are weights, wherever they come from
_WEIGHTS = {
    "MatMul": (0, 1),
    "Gemm": (0, 1, 2),
    "Einsum": (0, 1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "DeformConv": (1, 3),
    "BatchNormalization": (1, 2, 3, 4),  # with its statistics, which are state
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "PRelu": (1,),
    "LSTM": (1, 2, 3, 7),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
}
_ROOTS = ("Sqrt", "Reciprocal", "Pow")  # what a normalization in parts divides by
_VIEWS = (*VIEWS, "Cast", "Transpose")
_ASSEMBLED = ("Slice", "Split", "Concat")  # the weights of LSTM and GRU, in another order of gates
_OF_PADDLE = re.compile(r"\.[wb]_\d+$")  # what Paddle calls parameters: linear_7.w_0


def lift_constant_weights(model: ir.Model, names: Collection[str] = ()) -> ir.Model:
    """Constant nodes that hold weights, or have one of the names, become initializers, in place."""
    by_default = _constants_may_be_weights(model)
    for node in [node for node in walk(model.graph) if _is_float_constant(node)]:
        value, graph = node.outputs[0], node.graph
        if value.name in names or (by_default and is_weight(value)):
            assert graph is not None
            _lift(graph, node, value)
    return model


def is_named_parameter(value: ir.Value) -> bool:
    """Whether a tensor has a name that only parameters have, those of one number too."""
    return bool(_OF_PADDLE.search(str(value.name)))


def is_weight(value: ir.Value) -> bool:
    """Whether a constant is read as a weight, by its readers or by its name."""
    if is_named_parameter(value):
        return True
    held = _held(value)
    return held is not None and any(_is_weight_of(n, i, held) for n, i in value.uses())


def _lift(graph: ir.Graph | ir.Function, node: ir.Node, value: ir.Value) -> None:
    tensor = constant_tensor(node)
    name = str(value.name)
    held = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    own = ir.val(name, dtype=tensor.dtype, shape=held.shape, const_value=held)
    ir.convenience.replace_all_uses_with(value, own)
    graph.remove(node)
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(own)


def _is_float_constant(node: ir.Node) -> bool:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return False
    value = node.outputs[0]
    if not value.name or value.is_graph_output() or not isinstance(node.graph, ir.Graph):
        return False
    if not node.attributes.keys() & {"value", "value_floats", "value_float"}:
        return False
    return constant_tensor(node).dtype in FLOATS


def _constants_may_be_weights(model: ir.Model) -> bool:
    """Whether the exporter may have written weights as Constants.

    torch writes parameters as initializers; Constants are what the program's text held.
    """
    if model.producer_name != "pytorch" and not Provenance(model).parameters:
        return True
    initializers = model.graph.initializers.values()
    return not any(value.dtype in FLOATS and is_weight(value) for value in initializers)


def _is_weight_of(node: ir.Node, index: int, held: ir.TensorProtocol) -> bool:
    """Whether a node reads a constant as a weight, or passes it on to one that does."""
    kind = node.op_type
    if kind in _VIEWS + _ASSEMBLED and (index == 0 or kind == "Concat"):
        if not all(_is_fixed(each) for each in node.inputs):
            return False
        return any(_is_weight_of(n, i, held) for made in node.outputs for n, i in made.uses())
    if kind == "Gather":
        return index == 0 and len(held.shape) > 1 and not _is_fixed(node.inputs[1])
    if kind == "Add":
        return _is_added_bias(_behind_views(node.inputs[1 - index]), held)
    if kind == "Mul":
        return held.size > 1 and _is_normalized(_behind_views(node.inputs[1 - index]))
    return index in _WEIGHTS.get(kind, ())


def _is_added_bias(other: ir.Value | None, held: ir.TensorProtocol) -> bool:
    """Whether a constant that is added to a value is its bias; x + 3 is a formula."""
    if held.size > 1:
        return made_by(other, *PRODUCTS) is not None or _is_scaled(other)
    product = made_by(other, "MatMul")
    if product is None or not len(held.shape):
        return False
    weight = None if product.inputs[1] is None else _held(product.inputs[1])
    return weight is not None and weight.shape[-1] == 1


def _is_fixed(value: ir.Value | None) -> bool:
    """Whether a value does not depend on feeds, seen through what passes constants on."""
    if value is None or is_constant(value):
        return True
    node = value.producer()
    if node is None or node.op_type not in ("Constant", *_VIEWS, *_ASSEMBLED):
        return False
    return all(_is_fixed(each) for each in node.inputs)


def _behind_views(value: ir.Value | None) -> ir.Value | None:
    while (node := made_by(value, *_VIEWS)) is not None:
        value = node.inputs[0]
    return value


def _is_normalized(value: ir.Value | None) -> bool:
    """Whether a value is x / sqrt(...), as a normalization in parts is."""
    node = made_by(value, "Div", "Mul")
    return node is not None and any(made_by(each, *_ROOTS) is not None for each in node.inputs)


def _is_scaled(value: ir.Value | None) -> bool:
    """Whether a value is a normalized one, times its scale."""
    node = made_by(value, "Mul")
    return node is not None and any(
        _is_normalized(_behind_views(a)) and _is_fixed(b)
        for a, b in (node.inputs, node.inputs[::-1])
    )


def _held(value: ir.Value) -> ir.TensorProtocol | None:
    """What an initializer or a Constant node holds."""
    node = made_by(value, "Constant")
    return value.const_value if node is None else constant_tensor(node)
