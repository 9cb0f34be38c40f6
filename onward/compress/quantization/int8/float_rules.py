"""Rewrite float nodes so that onnxruntime's int8 models run faster."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    input_of,
    ints,
    is_constant,
    is_scalar,
    made_by,
    rank,
    reads_once,
    same_shape,
)

rules_of_int8 = Rules()


@rules_of_int8("ReduceMean")
def mean_as_pooling(op: Ops, node: ir.Node) -> Replacement:
    """mean(x) over all axes but the first two = GlobalAveragePool(x), which has an int8 kernel."""
    axes, size = ints(input_of(node, 1)), rank(node.inputs[0])
    if axes is None or size is None or size < 3:
        return None
    if sorted(axis % size for axis in axes) != list(range(2, size)):
        return None
    if attribute(node, "keepdims", 1):
        return op.GlobalAveragePool(node.inputs[0])
    return op.Flatten(op.GlobalAveragePool(node.inputs[0]), axis=1)


@rules_of_int8("Add")
def residual_as_sum(op: Ops, node: ir.Node) -> Replacement:
    """Add in front of LayerNormalization = Sum.

    onnxruntime fuses such an Add into SkipLayerNormalization, which takes five times as long on
    a CPU as both nodes, and absorbs the bias that should be fused into the int8 product.
    """
    x, y = node.inputs
    readers = {use.node.op_type for use in node.outputs[0].uses()}
    if "LayerNormalization" not in readers or not same_shape(x, y):
        return None
    if is_constant(x) or is_constant(y):
        return None
    return op.Sum(x, y)


@rules_of_int8("MatMul")
def guard_of_rows(op: Ops, node: ir.Node) -> Replacement:
    """where(isnan(p), 0, p) v = where(isnan(p[..., :1]), 0, p v), with p a softmax over rows.

    A row of a softmax is either all NaN or has no NaN: it is enough to test its first number.
    """
    where = made_by(node.inputs[0], "Where")
    if where is None or not reads_once(where.outputs[0]):
        return None
    test, zero, p = where.inputs
    nan, softmax = made_by(test, "IsNaN"), made_by(p, "Softmax")
    if nan is None or softmax is None or nan.inputs[0] is not p or not is_scalar(zero, 0.0):
        return None
    size, v = rank(p), node.inputs[1]
    if size is None or size < 2 or rank(v) != size:
        return None
    if attribute(softmax, "axis", -1) not in (-1, size - 1):
        return None
    first = op.Slice(p, np.array([0]), np.array([1]), np.array([-1]))
    return op.Where(op.IsNaN(first), zero, op.MatMul(p, v))
