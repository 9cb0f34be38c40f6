"""Forms of masks and normalisations that onnxruntime's kernels run faster on x86-64.

Each rule was measured there by `benchmarks/forms.py`; on other processors they are not applied.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    constant,
    dims,
    input_of,
    ints,
    is_scalar,
    made_by,
    rank,
    reads_once,
)

rule = Rules()

_LARGE = 3e38  # times any number that is not denormal: at least 1
_PRODUCTS = ("Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul")
_VIEWS = ("Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@rule("Where")
def mask_by_product(op: Ops, node: ir.Node) -> Replacement:
    """where(x > 0, dy, 0) = dy clip(x large, 0, 1): two vectorised passes instead of a slow one.

    0 times an infinite dy is NaN. So only for a dy that a matrix product or a convolution made: an
    infinite one means that the gradients before it have overflowed already.
    """
    condition, dy, other = node.inputs
    compared = made_by(condition, "Greater")
    if compared is None or dy is None or dy.dtype != ir.DataType.FLOAT or not is_scalar(other, 0.0):
        return None
    x, zero = compared.inputs
    if x is None or x.dtype != dy.dtype or not is_scalar(zero, 0.0) or not _is_product(dy):
        return None
    if dims(x) is None or dims(x) != dims(dy) or None in (dims(x) or (None,)):
        return None
    expand = made_by(dy, "Expand")  # the product repeats what is smaller
    small = dy if expand is None or rank(expand.inputs[0]) != rank(dy) else expand.inputs[0]
    return op.Mul(small, op.HardSigmoid(x, alpha=_LARGE, beta=0.0))


def _is_product(value: ir.Value | None) -> bool:
    """Whether a product made the value: the same numbers in another shape, or scaled by one."""
    while value is not None:
        maker = value.producer()
        if maker is None or maker.op_type in _PRODUCTS:
            return maker is not None
        scaled = maker.op_type in ("Div", "Mul") and constant(maker.inputs[1], 1) is not None
        if not scaled and maker.op_type not in _VIEWS:
            return False
        value = maker.inputs[0]
    return False


@rule("Add")
def one_affine_pass_less(op: Ops, node: ir.Node) -> Replacement:
    """batch_norm(y, a, c) + batch_norm(x, s, 0, m) = batch_norm(y, a, c - s m) + s x

    The second is the gradient's own affine map of x, and BatchNormalization has one thread.
    """
    first, second = (made_by(value, "BatchNormalization") for value in node.inputs)
    if first is None or second is None or not (_is_affine(first) and _is_affine(second)):
        return None
    x, s, bias, mean = second.inputs[:4]
    if x is None or x.dtype != ir.DataType.FLOAT or not _is_zero(bias):
        return None
    if not _is_zero(first.inputs[3]):
        return None
    if any(not reads_once(value) for value in node.inputs if value is not None):
        return None
    shift = op.Sub(first.inputs[2], op.Mul(s, mean))
    y = op.BatchNormalization(
        first.inputs[0], first.inputs[1], shift, *first.inputs[3:], **first.attributes
    )
    column = op.Reshape(s, [-1, *[1] * ((rank(x) or 2) - 2)])
    return op.Add(y, op.Mul(x, column))


def _is_affine(node: ir.Node) -> bool:
    """Whether it is a (x - mean) + c: its variance is 1, its epsilon 0."""
    variance = constant(node.inputs[4])
    return (
        len(node.outputs) == 1
        and not attribute(node, "training_mode", 0)
        and attribute(node, "epsilon", 1e-5) == 0
        and variance is not None
        and bool((variance == 1).all())
        and (rank(node.inputs[0]) or 0) > 2
    )


def _is_zero(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and not array.any()


@rule("ReduceMean")
def mean_of_scaled_rows(op: Ops, node: ir.Node) -> Replacement:
    """mean over the last axis of x scale = x (scale / size), a product with a vector."""
    product, axes = made_by(node.inputs[0], "Mul"), ints(input_of(node, 1))
    if product is None or not attribute(node, "keepdims", 1) or axes is None:
        return None
    x, scale = product.inputs
    shape, width = dims(x), dims(scale)
    if shape is None or width is None or x is None or x.dtype != ir.DataType.FLOAT:
        return None
    size = shape[-1]
    if len(shape) < 2 or width != (size,) or not isinstance(size, int) or size < 2:
        return None
    if axes not in ([-1], [len(shape) - 1]):
        return None
    column = op.Reshape(op.Mul(scale, np.float32(1 / size)), [size, 1])
    return op.MatMul(x, column)
