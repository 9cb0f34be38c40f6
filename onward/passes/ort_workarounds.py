"""Rewrite nodes that stock onnxruntime refuses, or computes wrongly, into forms that it runs.

It is in passes, not in providers/ort, because `gradient()` applies it to the models it returns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import HALVES
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Ops, Replacement, Rules, rewrite
from onward.passes.value_facts import (
    attribute,
    dims,
    input_of,
    ints,
    is_constant,
    made_by,
    rank,
)

_rules = Rules()
_VIEWS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def apply_ort_workarounds(model: ir.Model) -> ir.Model:
    """Apply every workaround, and remove the nodes that are unused after it."""
    return drop_unused(model) if rewrite(model, _rules) else model


@_rules("Attention")
def _full_mask(op: Ops, node: ir.Node) -> Replacement:
    """Expand a mask that may broadcast over the queries: onnxruntime's kernel needs every row."""
    q, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    known = dims(mask)
    if known is None or len(known) < 2 or rank(q) not in (3, 4):
        return None
    at = -2 if rank(q) == 4 else 1
    rows, queries = known[-2], (dims(q) or ())[at]
    if rows == queries or queries == 1 or (isinstance(rows, int) and rows != 1):
        return None
    one = np.ones(1, np.int64)
    times = op.Shape(q, start=at, end=at + 1)
    full = op.Expand(mask, op.Concat(times, one, axis=0))
    full.shape = ir.Shape([*known[:-2], queries, known[-1]])  # so that it is not expanded again
    full.type = mask.type if mask is not None else None  # onnx_ir warns of shapes without a type
    inputs = [*node.inputs[:3], full, *node.inputs[4:]]
    return op.many("Attention", len(node.outputs), *inputs, **node.attributes)


@_rules("MatMul")
def _vector_as_matrix(op: Ops, node: ir.Node) -> Replacement:
    """Multiply a transposed matrix by a matrix of one column (or row) instead of a vector.

    onnxruntime fuses the Transpose into the product, and then reads the matrix as if it were not
    transposed.
    """
    a, b = node.inputs
    is_last = rank(b) == 1 and made_by(a, "Transpose") is not None
    is_first = rank(a) == 1 and made_by(b, "Transpose") is not None
    if is_last == is_first:  # neither
        return None
    if is_last:
        product = op.MatMul(a, op.Unsqueeze(b, np.array([1])))
        return op.Squeeze(product, np.array([-1]))
    return op.Squeeze(op.MatMul(op.Unsqueeze(a, np.array([0])), b), np.array([-2]))


def misreads_scales(node: ir.Node) -> bool:
    """Whether onnxruntime takes scales along the summed axis of a weight for those of outputs."""
    if node.domain not in ("", "ai.onnx") or node.op_type != "DequantizeLinear":
        return False
    axes, sizes = rank(node.inputs[0]), dims(node.inputs[1])
    if not axes or sizes is None or len(sizes) != 1 or sizes[0] == 1:
        return False
    if attribute(node, "block_size", 0) or not is_constant(node.inputs[0]):
        return False
    return any(
        axis != out or (axes != 2 and product.op_type != "Conv")
        for product, axis in _products_of(node.outputs[0], attribute(node, "axis", 1) % axes, axes)
        for out in (_out_axis(product),)
    )


def _out_axis(product: ir.Node) -> int:
    """The axis of a weight that is not summed."""
    is_gemm = product.op_type == "Gemm" and bool(attribute(product, "transB", 0))
    return 0 if product.op_type == "Conv" or is_gemm else 1


def _products_of(
    value: ir.Value, axis: int | None, axes: int
) -> Iterator[tuple[ir.Node, int | None]]:
    """The products of dequantized data that read a weight, and the axis of its scales there."""
    for reader, place in value.uses():
        if reader.op_type in _VIEWS and place == 0:
            yield from _products_of(reader.outputs[0], _moved_axis(reader, axis, axes), axes)
        elif reader.op_type in ("MatMul", "Gemm", "Conv") and place == 1:
            data = reader.inputs[0]
            while (view := made_by(data, *_VIEWS)) is not None:
                data = view.inputs[0]
            if made_by(data, "DequantizeLinear") is not None:
                yield reader, axis


def _moved_axis(view: ir.Node, axis: int | None, axes: int) -> int | None:
    """An axis behind a node that only moves numbers; None: not known."""
    if view.op_type == "Identity" or axis is None:
        return axis
    if view.op_type != "Transpose":
        return None
    order = list(attribute(view, "perm", None) or range(axes)[::-1])
    return order.index(axis)


@_rules("DequantizeLinear")
def _scales_along_summed_axis(op: Ops, node: ir.Node) -> Replacement:
    """(w - zero) * scale in operators of their own, where onnxruntime misreads the scales.

    It fuses DequantizeLinear of data and weight with the product, and reads scales of any axis as
    those of the outputs: wrong numbers if the weight is square, an error in each run if not.
    """
    if not misreads_scales(node):
        return None
    w, scale, zero = node.inputs[0], node.inputs[1], input_of(node, 2)
    axes = rank(w)
    assert axes and scale is not None
    shape = np.ones(axes, np.int64)
    shape[attribute(node, "axis", 1)] = -1
    kind = int(scale.dtype or ir.DataType.FLOAT)
    steps = op.Cast(w, to=kind)
    if zero is not None:
        steps = op.Sub(steps, op.Reshape(op.Cast(zero, to=kind), shape))
    return op.Mul(steps, op.Reshape(scale, shape))


@_rules("Pad")
def _every_axis(op: Ops, node: ir.Node) -> Replacement:
    """Give pads for all axes: onnxruntime ignores `axes` when it moves a Transpose."""
    x, axes, pads = node.inputs[0], ints(input_of(node, 3)), ints(input_of(node, 1))
    count = rank(x)
    if axes is None or pads is None or count is None:
        return None
    full = [0] * (2 * count)
    for place, axis in enumerate(axes):
        full[axis % count] = pads[place]
        full[axis % count + count] = pads[place + len(axes)]
    return op.Pad(x, full, input_of(node, 2), mode=attribute(node, "mode", "constant"))


@_rules("Softplus")
def _softplus_of_doubles(op: Ops, node: ir.Node) -> Replacement:
    """max(x, 0) + log(1 + exp(-|x|)) for float64, for which onnxruntime has no Softplus."""
    (x,) = node.inputs
    if x is None or x.dtype != ir.DataType.DOUBLE:
        return None
    decay = op.Exp(op.Neg(op.Abs(x)))
    return op.Add(op.Max(x, np.float64(0)), op.Log(op.Add(decay, np.float64(1))))


@_rules("ScatterElements", "ScatterND")
def _scatter_of_narrow_floats(op: Ops, node: ir.Node) -> Replacement:
    """Reduce 16-bit floats in float32: onnxruntime's kernel has no reduction for them."""
    data, indices, updates = node.inputs
    if data is None or data.dtype not in HALVES or attribute(node, "reduction", "none") == "none":
        return None
    wide = int(ir.DataType.FLOAT)
    inputs = op.Cast(data, to=wide), indices, op.Cast(updates, to=wide)
    return op.Cast(op.one(node.op_type, *inputs, **node.attributes), to=int(data.dtype))


@_rules("BatchNormalization")
def _statistics_of_its_own(op: Ops, node: ir.Node) -> Replacement:
    """Copy the statistics that a training BatchNormalization reads, unless it returns new ones.

    onnxruntime writes new statistics that are no outputs of the graph into the old ones: into the
    caller's array, or into an initializer, which may be the scale of the same node, because
    onnxruntime keeps equal initializers once.
    """
    x, axes = node.inputs[0], rank(node.inputs[0])
    if not attribute(node, "training_mode", 0) or x is None or axes is None or axes < 2:
        return None
    inputs, numbers = list(node.inputs), None
    for i, news in ((3, node.outputs[1:2]), (4, node.outputs[2:3])):
        value = inputs[i]
        is_returned = any(new.is_graph_output() for new in news)
        if value is None or value.dtype is None or is_returned or _is_own(value, node):
            continue
        if numbers is None:
            numbers = _number_of_each_channel(op, x, axes)
        # a condition that depends on x, and another one for each: neither folded nor merged
        condition = op.Less(numbers, np.array(i, x.dtype.numpy() if x.dtype else np.float32))
        inputs[i] = op.Where(condition, value, value)
    if numbers is None:
        return None
    return op.many("BatchNormalization", len(node.outputs), *inputs, **node.attributes)


def _number_of_each_channel(op: Ops, x: ir.Value, axes: int) -> ir.Value:
    """The first element of each channel of the first image."""
    others = [0, *range(2, axes)]
    first = op.Slice(x, [0] * len(others), [1] * len(others), others)
    return op.Reshape(first, [-1])


def _is_own(value: ir.Value, node: ir.Node) -> bool:
    """Whether a node of the same graph computes a value for this node alone."""
    maker = value.producer()
    return maker is not None and maker.graph is node.graph and len(value.uses()) == 1
