"""Products with weights of few bits (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.ops import GradientOps
from onward.gradients.rule import GradientTable
from onward.passes.facts import attribute, input_of

gradient = GradientTable()


@gradient("MatMulNBits", domain="com.microsoft")
@formula
def matmul_n_bits(op: GradientOps, node: ir.Node) -> Any:
    """y = a w' + bias, w = (q - zero) scale: da = dy w, dscale = (q - zero) dw, summed by block"""
    a, packed, scales, zeros, order, bias = (input_of(node, i) for i in range(6))
    assert a is not None and packed is not None and scales is not None
    rows, columns = attribute(node, "N"), attribute(node, "K")
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size")
    blocks = -(-columns // block)
    q = _unpacked(op, op.Reshape(packed, [rows, -1]), bits)
    scale = op.Reshape(scales, [rows, blocks])
    if zeros is None:
        zero = op.number_like(float(1 << bits - 1), a)
    elif zeros.dtype == ir.DataType.UINT8:
        zero = _unpacked(op, op.Reshape(zeros, [rows, -1]), bits)
        zero = op.cast_like(op.Slice(zero, [0], [blocks], [1]), a)
    else:
        zero = op.cast_like(op.Reshape(zeros, [rows, blocks]), a)
    if order is None:  # each block's own
        q = op.Reshape(q, [rows, blocks, block])
        scale, zero = (x if x.shape == () else op.Unsqueeze(x, [2]) for x in (scale, zero))
    else:  # each column says whose it has
        order = op.Slice(order, [0], [columns], [0])
        q = op.Slice(q, [0], [columns], [1])
        scale, zero = (x if x.shape == () else op.Gather(x, order, axis=1) for x in (scale, zero))
    w = op.Mul(op.Sub(op.cast_like(q, a), zero), op.cast_like(scale, a))
    w = op.Slice(op.Reshape(w, [rows, -1]), [0], [columns], [1])
    y = op.MatMul(a, op.Transpose(w, perm=[1, 0]))
    return y if bias is None else op.Add(y, bias)


def _unpacked(op: GradientOps, x: ir.Value, bits: int) -> ir.Value:
    """Bytes as the numbers packed in them along the last axis, low bits first."""
    if bits == 8:
        return x
    mask = np.uint8((1 << bits) - 1)
    shifted = [op.BitShift(x, np.uint8(by), direction="RIGHT") for by in range(0, 8, bits)]
    fields = [op.Unsqueeze(op.BitwiseAnd(each, mask), [2]) for each in shifted]
    return op.Reshape(op.Concat(*fields, axis=2), op.shape(0, -1))
