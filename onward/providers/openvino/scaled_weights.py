"""Which axis of a stored weight has scales of its own, and whether a product sums over it."""

from __future__ import annotations

import onnx_ir as ir

_KEEPING = ("Cast", "Flatten", "Identity", "Reshape")  # where the shape stays as it is


def has_scales_of_summed_inputs(node: ir.Node) -> bool:
    """Whether the scales of a constant matrix follow the axis that a product sums over, alone.

    y[b, n] = sum_k x[b, k] (w[k, n] - z[k]) s[k]
    """
    data, axis = node.inputs[0], _scaled_axis(node)
    if data is None or data.const_value is None or data.is_graph_input() or axis is None:
        return False
    return _is_summed(node.outputs[0], axis)


def _scaled_axis(node: ir.Node) -> int | None:
    """The only axis of a matrix along which the scales of DequantizeLinear differ."""
    data, scale = node.inputs[0], node.inputs[1]
    if data is None or scale is None or data.shape is None or scale.shape is None:
        return None
    sizes = tuple(scale.shape)
    axis = node.attributes.get_int("axis", 1) % 2
    if len(data.shape) != 2:
        return None
    if len(sizes) == 1:
        return None if sizes[0] == 1 else axis
    is_one_block = len(sizes) == 2 and sizes[axis] == 1 and sizes[1 - axis] != 1
    return 1 - axis if is_one_block else None


def _is_summed(value: ir.Value, axis: int) -> bool:
    """Whether a product sums over this axis of a matrix."""
    return any(_sums(use.node, use.idx, axis) for use in value.uses())


def _sums(node: ir.Node, place: int, axis: int) -> bool:
    y = node.outputs[0]
    if node.op_type == "Transpose":
        order = list(node.attributes.get_ints("perm", [1, 0]))
        return _is_summed(y, order.index(axis))
    if node.op_type in _KEEPING:
        x = node.inputs[0]
        return place == 0 and x is not None and x.shape == y.shape and _is_summed(y, axis)
    if node.op_type == "MatMul":
        return place == 1 and axis == 0
    if node.op_type == "Gemm":
        return place == 1 and axis == node.attributes.get_int("transB", 0)
    if node.op_type != "Einsum":
        return False
    terms, _, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    term = terms.split(",")[place]
    return axis >= len(term) or term[axis] not in result
