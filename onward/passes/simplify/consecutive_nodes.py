"""Rules that merge two consecutive nodes into one, or remove both."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.operators import BROADCASTING, RESHAPING
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    dims,
    fits_within,
    input_of,
    ints,
    made_by,
    rank,
    scalar,
)

rule = Rules()

_T = ir.DataType
_INTEGERS = {  # type -> (bits that hold a value, may be negative)
    _T.BOOL: (1, False),
    _T.UINT8: (8, False),
    _T.UINT16: (16, False),
    _T.UINT32: (32, False),
    _T.UINT64: (64, False),
    _T.INT8: (7, True),
    _T.INT16: (15, True),
    _T.INT32: (31, True),
    _T.INT64: (63, True),
}
_FLOATS = {  # type -> (significant bits, bits of the exponent)
    _T.BFLOAT16: (8, 8),
    _T.FLOAT16: (11, 5),
    _T.FLOAT: (24, 8),
    _T.DOUBLE: (53, 11),
}


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether `wide` has every value of `narrow`, exactly."""
    if wide in _INTEGERS and narrow in _INTEGERS:
        (bits, signed), (needed, negative) = _INTEGERS[wide], _INTEGERS[narrow]
        return bits >= needed and (signed or not negative)
    if wide in _FLOATS and narrow in _INTEGERS:
        bits, exponent = _FLOATS[wide]
        return bits >= _INTEGERS[narrow][0] and exponent >= 5
    if wide in _FLOATS and narrow in _FLOATS:
        return all(a >= b for a, b in zip(_FLOATS[wide], _FLOATS[narrow]))
    return False


@rule("Cast")
def cast_of_cast(op: Ops, node: ir.Node) -> Replacement:
    """cast(cast(x, a), b) = cast(x, b) where a holds every value of x."""
    inner = made_by(node.inputs[0], "Cast")
    if inner is None or inner.inputs[0] is None or inner.inputs[0].dtype is None:
        return None
    x, between, target = inner.inputs[0], inner.outputs[0].dtype, attribute(node, "to")
    if between is None or between == _T.BOOL or not holds(between, x.dtype or _T.UNDEFINED):
        return None
    if target not in _INTEGERS and target not in _FLOATS:
        return None
    return op.Cast(x, to=target)


@rule("Reshape")
def reshape_of_reshape(op: Ops, node: ir.Node) -> Replacement:
    """reshape(reshape(x, a), b) = reshape(x, b), where b does not copy a size from a's result."""
    inner = made_by(node.inputs[0], *RESHAPING)
    sizes = ints(input_of(node, 1))
    if inner is None or sizes is None or 0 in sizes:
        return None
    return op.Reshape(inner.inputs[0], node.inputs[1])


@rule("Squeeze")
def squeeze_of_unsqueeze(op: Ops, node: ir.Node) -> Replacement:
    """squeeze(unsqueeze(x, axes), axes) = x."""
    inner = made_by(node.inputs[0], "Unsqueeze")
    return None if inner is None or not _same_axes(inner, node) else inner.inputs[0]


@rule("Unsqueeze")
def unsqueeze_of_squeeze(op: Ops, node: ir.Node) -> Replacement:
    """unsqueeze(squeeze(x, axes), axes) = x."""
    inner = made_by(node.inputs[0], "Squeeze")
    return None if inner is None or not _same_axes(inner, node) else inner.inputs[0]


def _same_axes(inner: ir.Node, outer: ir.Node) -> bool:
    """Whether a Squeeze and an Unsqueeze have the same axes."""
    large = inner.outputs[0] if inner.op_type == "Unsqueeze" else inner.inputs[0]
    depth = rank(large)
    first, second = ints(input_of(inner, 1)), ints(input_of(outer, 1))
    if depth is None or first is None or second is None:
        return False
    return sorted(axis % depth for axis in first) == sorted(axis % depth for axis in second)


@rule("Unsqueeze")
def unsqueeze_of_unsqueeze(op: Ops, node: ir.Node) -> Replacement:
    """unsqueeze(unsqueeze(x, a), b) = unsqueeze(x, a and b)"""
    inner = made_by(node.inputs[0], "Unsqueeze")
    if inner is None:
        return None
    first, second = ints(inner.inputs[1]), ints(node.inputs[1])
    depth = rank(inner.inputs[0])
    if first is None or second is None or depth is None:
        return None
    middle = depth + len(first)
    added = {axis % middle for axis in first}
    again = {axis % (middle + len(second)) for axis in second}
    kept = [axis for axis in range(middle + len(second)) if axis not in again]
    axes = sorted(again | {kept[axis] for axis in added})
    return op.Unsqueeze(inner.inputs[0], axes)


@rule("Transpose")
def transpose_of_transpose(op: Ops, node: ir.Node) -> Replacement:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    inner = made_by(node.inputs[0], "Transpose")
    if inner is None:
        return None
    first, second = order_of(inner), order_of(node)
    if first is None or second is None:
        return None
    both = [first[axis] for axis in second]
    if both == list(range(len(both))):
        return inner.inputs[0]
    return op.Transpose(inner.inputs[0], perm=both)


@rule("Reshape")
def transpose_between_reshapes(op: Ops, node: ir.Node) -> Replacement:
    """reshape(transpose(reshape(x))) = transpose(x), for a batch of matrices.

    (b, h, m, n) -> (b h, m, n) -> (b h, n, m) -> (b, h, n, m), as torch.onnx writes it.
    """
    transpose = made_by(node.inputs[0], "Transpose")
    flatten = None if transpose is None else made_by(transpose.inputs[0], "Reshape")
    if transpose is None or flatten is None or order_of(transpose) != [0, 2, 1]:
        return None
    x = dims(flatten.inputs[0])
    flat, y = dims(flatten.outputs[0]), dims(node.outputs[0])
    if x is None or flat is None or y is None or None in (*x, *flat[1:]) or len(x) != len(y):
        return None
    *batch, m, n = x
    if flat[1:] != (m, n) or y != (*batch, n, m) or node.outputs[0].is_graph_output():
        return None
    depth = len(x)
    return op.Transpose(flatten.inputs[0], perm=[*range(depth - 2), depth - 1, depth - 2])


def order_of(node: ir.Node) -> list[int] | None:
    """A Transpose's permutation; without one it reverses the axes."""
    order = attribute(node, "perm")
    if order is not None:
        return list(order)
    depth = rank(node.inputs[0])
    return None if depth is None else list(range(depth))[::-1]


@rule(*BROADCASTING)
def expand_before_broadcast(op: Ops, node: ir.Node) -> Replacement:
    """expand(a) + b = a + b if a broadcasts to b's shape anyway."""
    for index in (0, 1):
        expand, other = made_by(node.inputs[index], "Expand"), node.inputs[1 - index]
        if expand is None or not fits_within(node.inputs[index], other):
            continue
        operands = [expand.inputs[0], other] if index == 0 else [other, expand.inputs[0]]
        return op.one(node.op_type, *operands, **node.attributes)
    return None


@rule("Concat")
def concat_of_concat(op: Ops, node: ir.Node) -> Replacement:
    """concat(concat(a, b), c) = concat(a, b, c)."""
    axis = attribute(node, "axis")
    parts: list[ir.Value | None] = []
    for value in node.inputs:
        inner = made_by(value, "Concat")
        if inner is not None and len(inner.outputs[0].uses()) == 1 and _along(inner, axis):
            parts.extend(inner.inputs)
        else:
            parts.append(value)
    if len(parts) == len(node.inputs):
        return None
    return op.Concat(*parts, axis=axis)


def _along(concat: ir.Node, axis: int) -> bool:
    theirs: int = attribute(concat, "axis")
    depth = rank(concat.outputs[0])
    return theirs == axis if depth is None else theirs % depth == axis % depth


@rule("Concat")
def concat_of_split(op: Ops, node: ir.Node) -> Replacement:
    """concat(split(x)) = x"""
    split = made_by(node.inputs[0], "Split")
    if split is None or list(split.outputs) != list(node.inputs):
        return None
    ours, theirs = attribute(node, "axis"), attribute(split, "axis", 0)
    depth = rank(split.inputs[0])
    if ours != theirs and (depth is None or ours % depth != theirs % depth):
        return None
    return split.inputs[0]


@rule("Split")
def split_of_concat(op: Ops, node: ir.Node) -> Replacement:
    """split(concat(a, b)) = a, b, if the sizes are the same"""
    concat = made_by(node.inputs[0], "Concat")
    if concat is None or len(concat.inputs) != len(node.outputs):
        return None
    axis, depth = attribute(concat, "axis"), rank(node.inputs[0])
    ours = attribute(node, "axis", 0)
    if depth is None or ours % depth != axis % depth:
        return None
    for part, output in zip(concat.inputs, node.outputs):
        before, after = dims(part), dims(output)
        if before is None or after is None or not isinstance(before[axis], int):
            return None
        if before[axis] != after[axis]:
            return None
    return [part for part in concat.inputs if part is not None]


@rule("Relu")
def relu_of_clip(op: Ops, node: ir.Node) -> Replacement:
    """relu(clip(x, 0, b)) = clip(x, 0, b)."""
    clip = made_by(node.inputs[0], "Clip")
    lowest = None if clip is None else scalar(input_of(clip, 1))
    return node.inputs[0] if lowest is not None and lowest >= 0 else None


@rule("Transpose")
def transpose_of_ones(op: Ops, node: ir.Node) -> Replacement:
    """transpose(x) = reshape(x), if only axes of size 1 move"""
    shape, order = dims(node.inputs[0]), order_of(node)
    if shape is None or order is None:
        return None
    moved = [axis for axis in order if shape[axis] != 1]
    if moved != sorted(moved) or sum(not isinstance(shape[axis], int) for axis in moved) > 1:
        return None
    if any(shape[axis] == 0 for axis in moved):
        return None
    sizes = [shape[axis] if isinstance(shape[axis], int) else -1 for axis in order]
    return op.Reshape(node.inputs[0], sizes)
