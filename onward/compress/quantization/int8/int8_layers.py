"""Find the nodes that int8 kernels exist for: Conv, MatMul, Gemm, LSTM and Gather of a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.scopes import bodies, walk
from onward.passes.value_facts import Array, attribute, input_of, is_constant, made_by, rank

OPERATORS = ("Conv", "MatMul", "Gemm", "LSTM", "Gather")
INSIDE_BODY = "it is inside If, Loop or Scan"
_SMALLEST_TABLE = 1 << 14  # elements of a table whose rows are worth storing in 8 bits
_SMALLEST_WEIGHT = 64  # elements of a weight: below, quantizing data costs more than it saves


@dataclass(frozen=True, kw_only=True)
class Int8Layer:
    """A node that multiplies data by a weight, or reads rows of one. Values are given by name.

    Attributes:
        node: the node's name
        operator: its operator
        data: the value that is multiplied; for Gather, the indices
        weight: the initializer
        channel_axis: the axis of the weight along which each channel gets a scale
        bias: the initializer that is added to each channel; None if there is none
        adder: the node that adds the bias of a MatMul; None if there is none
        groups: of a Conv
    """

    node: str
    operator: str
    data: str
    weight: str
    channel_axis: int
    bias: str | None = None
    adder: str | None = None
    groups: int = 1

    @property
    def is_linear(self) -> bool:
        """Whether it computes data x weight + bias."""
        return self.operator in ("Conv", "MatMul", "Gemm")


def find_layers(model: ir.Model) -> tuple[dict[str, Int8Layer], dict[str, str]]:
    """The layers by node, and the nodes that stay float, each with the reason."""
    layers: dict[str, Int8Layer] = {}
    refused: dict[str, str] = {}
    for node in model.graph:
        if node.domain != "" or node.op_type not in OPERATORS:
            continue
        found = _examine(node)
        if isinstance(found, Int8Layer):
            layers[str(node.name)] = found
        elif found:
            refused[str(node.name)] = found
    for node in _inner_nodes(model):
        if node.domain == "" and node.op_type in OPERATORS[:4]:
            refused[str(node.name)] = INSIDE_BODY
    return layers, refused


def _inner_nodes(model: ir.Model) -> Iterator[ir.Node]:
    for node in model.graph:
        for body in bodies(node):
            yield from walk(body)


def weight_array(model: ir.Model, layer: Int8Layer) -> Array:
    """The weight of a layer."""
    return array_of(model, layer.weight)


def array_of(model: ir.Model, initializer: str) -> Array:
    """The data of an initializer."""
    tensor = model.graph.initializers[initializer].const_value
    assert tensor is not None
    return np.asarray(tensor.numpy())


def find_ties(model: ir.Model, layers: Mapping[str, Int8Layer]) -> dict[str, str]:
    """The weights of MatMuls that are the transpose of a table, and that table."""
    tables = {layer.weight for layer in layers.values() if layer.operator == "Gather"}
    ties = {}
    for layer in layers.values():
        if layer.operator != "MatMul":
            continue
        weight = array_of(model, layer.weight)
        for table in sorted(tables):
            other = array_of(model, table)
            if other.shape == weight.shape[::-1] and np.array_equal(other.T, weight):
                ties[layer.weight] = table
    return ties


def _examine(node: ir.Node) -> Int8Layer | str:
    """The layer that a node is; else why it stays float; "" if it is not a layer."""
    if node.op_type == "Gather":
        return _gather(node)
    if node.op_type == "LSTM":
        return _lstm(node)
    x, w = node.inputs[0], node.inputs[1]
    assert x is not None and w is not None
    if node.op_type == "MatMul" and not _is_weight(w):
        if _is_weight(x):
            return "its weight is the first operand"
        if made_by(w, "DequantizeLinear") is not None:
            return "it is quantized already"
        return "both operands are data: what goes into softmax stays float"
    if made_by(w, "DequantizeLinear") is not None:
        return "it is quantized already"
    if not _is_weight(w):
        return "its weight is computed"
    if (reason := _bad_weight(w)) or (reason := _bad_data(x)):
        return reason
    return {"Conv": _conv, "MatMul": _matmul, "Gemm": _gemm}[node.op_type](node, x, w)


def _conv(node: ir.Node, x: ir.Value, w: ir.Value) -> Int8Layer | str:
    if rank(w) not in (3, 4):
        return "int8 kernels of convolutions take one or two spatial axes"
    bias = input_of(node, 2)
    if bias is not None and not _is_weight(bias):
        return "its bias is computed"
    return Int8Layer(
        node=str(node.name),
        operator="Conv",
        data=str(x.name),
        weight=str(w.name),
        channel_axis=0,
        bias=_name(bias),
        groups=int(attribute(node, "group", 1)),
    )


def _matmul(node: ir.Node, x: ir.Value, w: ir.Value) -> Int8Layer | str:
    if rank(w) != 2:
        return f"its weight has {rank(w)} axes; int8 kernels take matrices"
    adder, bias = _bias_after(node)
    return Int8Layer(
        node=str(node.name),
        operator="MatMul",
        data=str(x.name),
        weight=str(w.name),
        channel_axis=1,
        bias=bias,
        adder=adder,
    )


def _bias_after(node: ir.Node) -> tuple[str | None, str | None]:
    """The Add of a constant vector, if only it reads the node's result."""
    y = node.outputs[0]
    readers = {use.node for use in y.uses()}
    if len(readers) != 1 or y.is_graph_output():
        return None, None
    (add,) = readers
    if add.op_type != "Add" or add.domain != "" or len(add.inputs) != 2:
        return None, None
    other = add.inputs[1] if add.inputs[0] is y else add.inputs[0]
    if other is None or not _is_weight(other) or rank(other) != 1:
        return None, None
    width = node.inputs[1].shape[1] if node.inputs[1] and node.inputs[1].shape else None
    return (str(add.name), str(other.name)) if _size(other) == width else (None, None)


def _gemm(node: ir.Node, x: ir.Value, w: ir.Value) -> Int8Layer | str:
    if attribute(node, "transA", 0):
        return "its data is transposed"
    if attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0:
        return "it multiplies by alpha or beta"
    bias = input_of(node, 2)
    axis = 0 if attribute(node, "transB", 0) else 1
    if bias is not None:
        if not _is_weight(bias):
            return "its bias is computed"
        if w.shape is None or _size(bias) != w.shape[axis]:
            return "its bias is not one number for each channel"
    return Int8Layer(
        node=str(node.name),
        operator="Gemm",
        data=str(x.name),
        weight=str(w.name),
        channel_axis=axis,
        bias=_name(bias),
    )


def _lstm(node: ir.Node) -> Int8Layer | str:
    x, w, r = node.inputs[:3]
    if not (_is_weight(w) and _is_weight(r)):
        return "its weights are computed"
    assert x is not None and w is not None and r is not None
    if (reason := _bad_weight(w)) or (reason := _bad_weight(r)):
        return reason
    if attribute(node, "layout", 0):
        return "onnxruntime has no LSTM of layout 1"
    return Int8Layer(
        node=str(node.name), operator="LSTM", data=str(x.name), weight=str(w.name), channel_axis=2
    )


def _gather(node: ir.Node) -> Int8Layer | str:
    table, indices = node.inputs
    if not _is_weight(table) or table is None or indices is None or rank(table) != 2:
        return ""
    if table.dtype != ir.DataType.FLOAT or attribute(node, "axis", 0) != 0:
        return ""
    if is_constant(indices) or _size(table) < _SMALLEST_TABLE:
        return ""
    if (reason := _bad_weight(table)) is not None:
        return reason
    return Int8Layer(
        node=str(node.name),
        operator="Gather",
        data=str(indices.name),
        weight=str(table.name),
        channel_axis=0,
    )


def _bad_weight(w: ir.Value) -> str | None:
    if w.dtype != ir.DataType.FLOAT:
        return f"its weight is {str(w.dtype).lower()}, not float32"
    if _size(w) < _SMALLEST_WEIGHT:
        return f"its weight has {_size(w)} numbers: too small to gain"
    assert w.const_value is not None
    if not np.isfinite(w.const_value.numpy()).all():
        return "its weight has NaN or infinite numbers"
    return None


def _bad_data(x: ir.Value) -> str | None:
    return None if x.dtype == ir.DataType.FLOAT else f"its data is {str(x.dtype).lower()}"


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and is_constant(value)


def _size(value: ir.Value) -> int:
    assert value.const_value is not None
    return math.prod(value.const_value.shape.numpy())


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else str(value.name)
