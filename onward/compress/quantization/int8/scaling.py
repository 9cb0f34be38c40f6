"""Multiply the channels of a value by factors, by changing the weights that compute it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.int8.static_writer import add_initializer
from onward.passes.rewrite import Names
from onward.passes.value_facts import Array, attribute, input_of, is_constant, rank, scalar

_PASSED = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Dropout")


def can_scale(value: ir.Value, readers: Collection[ir.Node], axis: int) -> bool:
    """Whether channels can be scaled for these readers, which must be all readers there are."""
    if value.is_graph_output() or any(use.node not in readers for use in value.uses()):
        return False
    node = value.producer()
    if node is None or node.domain != "" or len(value.uses()) == 0:
        return False
    if node.op_type in _PASSED or node.op_type == "Clip":
        if node.op_type == "Clip" and not _is_relu_or_relu6(node):
            return False
        if axis != 1 and "Pool" in node.op_type:
            return False
        return node.inputs[0] is not None and can_scale(node.inputs[0], [node], axis)
    if node.op_type == "LayerNormalization" and axis == -1:
        return attribute(node, "axis", -1) in (-1, (rank(value) or 0) - 1) and all(
            is_constant(each) for each in node.inputs[1:]
        )
    if node.op_type == "Conv":
        return axis == 1 and all(is_constant(each) for each in node.inputs[1:])
    if node.op_type in ("MatMul", "Gemm"):
        return axis == -1 and _is_matrix(node) and is_constant(input_of(node, 1))
    if node.op_type == "Add" and axis == -1:
        data, vector = _vector_operand(node)
        return data is not None and vector is not None and can_scale(data, [node], axis)
    return False


def clip_limit(value: ir.Value) -> float | None:
    """The least number at which a Clip between weights and value cuts off; None without one."""
    limits = []
    node = value.producer()
    while node is not None and node.op_type in (*_PASSED, "Clip"):
        limit = scalar(input_of(node, 2)) if node.op_type == "Clip" else None
        if limit is not None:
            limits.append(limit)
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return min(limits, default=None)


def scale(value: ir.Value, factors: Array, names: Names) -> None:
    """Multiply the channels of a value that `can_scale` accepted."""
    node = value.producer()
    assert node is not None and node.graph is not None
    if node.op_type in (*_PASSED, "Clip"):
        assert node.inputs[0] is not None
        scale(node.inputs[0], factors, names)
    elif node.op_type == "Add":
        data, vector = _vector_operand(node)
        assert data is not None and vector is not None
        multiply_weight(node, list(node.inputs).index(vector), factors, 0, names)
        scale(data, factors, names)
    elif node.op_type == "Conv":
        multiply_weight(node, 1, factors, 0, names)
        if input_of(node, 2) is not None:
            multiply_weight(node, 2, factors, 0, names)
    elif node.op_type == "LayerNormalization":
        for index in range(1, len(node.inputs)):
            multiply_weight(node, index, factors, 0, names)
    else:
        axis = 0 if attribute(node, "transB", 0) else 1
        multiply_weight(node, 1, factors, axis, names)
        bias = input_of(node, 2)
        if bias is not None:
            multiply_weight(node, 2, factors, (rank(bias) or 1) - 1, names)


def multiply_weight(node: ir.Node, index: int, factors: Array, axis: int, names: Names) -> None:
    """Multiply a node's weight along an axis; other readers keep the old weight."""
    old = node.inputs[index]
    assert old is not None and old.const_value is not None and node.graph is not None
    array = np.asarray(old.const_value.numpy())
    shape = [1] * max(array.ndim, 1)  # one number for all channels becomes one for each
    shape[axis] = -1
    new = (array * factors.reshape(shape)).astype(array.dtype)
    replace_weight(node, index, new, names)


def replace_weight(node: ir.Node, index: int, array: Array, names: Names) -> None:
    """Give a node another weight; other readers keep the old one."""
    old = node.inputs[index]
    assert old is not None and node.graph is not None
    graph = node.graph
    name = str(old.name)
    if len(old.uses()) > 1 or old.is_graph_output() or old.graph is not graph:
        name = names.fresh(f"{name}/scaled")
        node.replace_input_with(index, add_initializer(graph, name, array))
        return
    old.const_value = ir.tensor(np.asarray(array, order="C"), name=name)
    old.shape = ir.Shape(array.shape)


def _is_relu_or_relu6(node: ir.Node) -> bool:
    """Whether a Clip cuts off at 0 and, if at all, at a number that is known."""
    limit = input_of(node, 2)
    return scalar(input_of(node, 1)) == 0.0 and (limit is None or scalar(limit) is not None)


def _is_matrix(node: ir.Node) -> bool:
    return rank(input_of(node, 1)) == 2


def _vector_operand(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """The data and the constant vector that an Add adds to it."""
    for data, vector in (node.inputs, reversed(node.inputs)):
        if is_constant(vector) and rank(vector) == 1 and not is_constant(data):
            return data, vector
    return None, None
