"""Gradients of MatMul and LSTM with quantized weights (com.microsoft)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.value_facts import attribute, input_of

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
    if order is None:  # in the order of blocks
        q = op.Reshape(q, [rows, blocks, block])
        scale, zero = (x if x.shape == () else op.Unsqueeze(x, [2]) for x in (scale, zero))
    else:  # each column has the index of its block
        order = op.Slice(order, [0], [columns], [0])
        q = op.Slice(q, [0], [columns], [1])
        scale, zero = (x if x.shape == () else op.Gather(x, order, axis=1) for x in (scale, zero))
    w = op.Mul(op.Sub(op.cast_like(q, a), zero), op.cast_like(scale, a))
    w = op.Slice(op.Reshape(w, [rows, -1]), [0], [columns], [1])
    y = op.MatMul(a, op.Transpose(w, perm=[1, 0]))
    return y if bias is None else op.Add(y, bias)


@gradient("DynamicQuantizeMatMul", domain="com.microsoft")
@formula
def dynamic_quantize_matmul(op: GradientOps, node: ir.Node) -> Any:
    """y = a w + bias, w = (q - zero) scale; a is rounded to bytes, which its gradient goes by"""
    a, q, scale, zero, bias = (input_of(node, i) for i in range(5))
    y = op.MatMul(a, _dequantized(op, q, scale, zero))
    return y if bias is None else op.Add(y, bias)


@gradient("MatMulIntegerToFloat", domain="com.microsoft")
@formula
def matmul_integer_to_float(op: GradientOps, node: ir.Node) -> Any:
    """y = (a - zero) scale (b - zero) scale + bias"""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (input_of(node, i) for i in range(7))
    y = op.MatMul(_dequantized(op, a, a_scale, a_zero), _dequantized(op, b, b_scale, b_zero))
    return y if bias is None else op.Add(y, bias)


def _dequantized(
    op: GradientOps, q: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None
) -> ir.Value:
    """(q - zero) scale, along the last axis if they have several elements."""
    return op.DequantizeLinear(q, scale, zero, axis=-1)


@gradient("DynamicQuantizeLSTM", domain="com.microsoft")
@formula
def dynamic_quantize_lstm(op: GradientOps, node: ir.Node) -> Any:
    """An LSTM with weights (q - zero) scale; its inputs are rounded to bytes, gradients go by it

    The weights are (directions, inputs, gates), with a scale for each direction, or each gate.
    """
    x = node.inputs[0]
    scales = [input_of(node, i) for i in range(8, 12)]
    w = _weights(op, node.inputs[1], scales[0], scales[1], x)
    r = _weights(op, node.inputs[2], scales[2], scales[3], x)
    rest = [input_of(node, i) for i in range(3, 8)]
    attributes = {name: each.value for name, each in node.attributes.items()}
    return op.LSTM(x, w, r, *rest, outputs=3, **attributes)


def _weights(
    op: GradientOps,
    q: ir.Value | None,
    scale: ir.Value | None,
    zero: ir.Value | None,
    x: ir.Value | None,
) -> ir.Value:
    """Bytes as an LSTM's weights, (directions, gates, inputs)."""
    assert q is not None and scale is not None and x is not None
    steps = op.cast_like(q, x)
    if zero is not None:
        steps = op.Sub(steps, _unsqueeze_for_weights(op, zero, x))
    return op.Transpose(op.Mul(steps, _unsqueeze_for_weights(op, scale, x)), perm=[0, 2, 1])


def _unsqueeze_for_weights(op: GradientOps, each: ir.Value, x: ir.Value) -> ir.Value:
    """(directions) or (directions, gates) so that it broadcasts over (directions, inputs, gates)"""
    return op.Unsqueeze(op.cast_like(each, x), [1, 2] if rank(each) == 1 else [1])


def _unpacked(op: GradientOps, x: ir.Value, bits: int) -> ir.Value:
    """Bytes as the numbers packed in them along the last axis, low bits first."""
    if bits == 8:
        return x
    mask = np.uint8((1 << bits) - 1)
    shifted = [op.BitShift(x, np.uint8(by), direction="RIGHT") for by in range(0, 8, bits)]
    fields = [op.Unsqueeze(op.BitwiseAnd(each, mask), [2]) for each in shifted]
    return op.Reshape(op.Concat(*fields, axis=2), op.shape(0, -1))
