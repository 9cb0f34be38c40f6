"""What onnxruntime's optimiser writes into transformers (domain com.microsoft), but attention.

Each is other operators put together, and is differentiated as these. ONNX knows none of their
attributes: defaults are spelled out here.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.facts import attribute, input_of

gradient = GradientTable()

MICROSOFT = "com.microsoft"


@gradient("Gelu", domain=MICROSOFT)
@formula
def gelu(op: GradientOps, node: ir.Node) -> Any:
    """y = gelu(x)"""
    return op.Gelu(node.inputs[0])


@gradient("BiasGelu", domain=MICROSOFT)
@formula
def bias_gelu(op: GradientOps, node: ir.Node) -> Any:
    """y = gelu(a + b)"""
    return op.Gelu(op.Add(*node.inputs))


@gradient("FastGelu", domain=MICROSOFT)
@formula
def fast_gelu(op: GradientOps, node: ir.Node) -> Any:
    """y = gelu(x + bias), by its tanh approximation"""
    x, bias = node.inputs[0], input_of(node, 1)
    return op.Gelu(x if bias is None else op.Add(x, bias), approximate="tanh")


@gradient("QuickGelu", domain=MICROSOFT)
@formula
def quick_gelu(op: GradientOps, node: ir.Node) -> Any:
    """y = x sigmoid(alpha x)"""
    (x,) = node.inputs
    return op.Mul(x, op.Sigmoid(op.Mul(x, attribute(node, "alpha", 1.702))))


@gradient("SkipLayerNormalization", domain=MICROSOFT)
@formula
def skip_layer_normalization(op: GradientOps, node: ir.Node) -> Any:
    """y = layer_norm(x + skip + bias) gamma + beta; and mean, 1 / deviation, the sum"""
    x, skip, gamma = node.inputs[:3]
    total = _skipped(op, x, skip, input_of(node, 4))
    epsilon = attribute(node, "epsilon", 1e-12)
    outputs = op.LayerNormalization(
        total, gamma, input_of(node, 3), axis=-1, epsilon=epsilon, outputs=3
    )
    return *outputs, total


@gradient("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
@formula
def skip_simplified_layer_normalization(op: GradientOps, node: ir.Node) -> Any:
    """y = rms_norm(x + skip + bias) gamma; and nothing, 1 / rms, the sum"""
    x, skip, gamma = node.inputs[:3]
    total = _skipped(op, x, skip, input_of(node, 3))
    epsilon = attribute(node, "epsilon", 1e-12)
    y = op.RMSNormalization(total, gamma, axis=-1, epsilon=epsilon)
    return y, None, _inverse(op, total, -1, epsilon), total


@gradient("SimplifiedLayerNormalization")
@gradient("SimplifiedLayerNormalization", domain=MICROSOFT)
@formula
def simplified_layer_normalization(op: GradientOps, node: ir.Node) -> Any:
    """y = x / rms(x) scale from `axis` on; and 1 / rms"""
    x, scale = node.inputs
    axis, epsilon = attribute(node, "axis", -1), attribute(node, "epsilon", 1e-5)
    y = op.RMSNormalization(x, scale, axis=axis, epsilon=epsilon)
    return y, _inverse(op, x, axis, epsilon)


def _skipped(op: GradientOps, x: Any, skip: Any, bias: ir.Value | None) -> ir.Value:
    total = op.Add(x, skip)
    return total if bias is None else op.Add(total, bias)


def _inverse(op: GradientOps, x: Any, axis: int, epsilon: float) -> ir.Value:
    """1 / sqrt(mean(x^2) + epsilon)"""
    axes = list(range(axis % rank(x), rank(x)))
    squares = op.ReduceMean(op.Mul(x, x), axes, keepdims=1)
    return op.Reciprocal(op.Sqrt(op.Add(squares, epsilon)))


@gradient("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
@formula
def fused_matmul(op: GradientOps, node: ir.Node) -> Any:
    """y = alpha a b, either transposed in its last two axes, or its first moved behind a batch"""
    a, b = (
        _turned(op, x, attribute(node, f"trans{side}", 0), attribute(node, f"transBatch{side}", 0))
        for x, side in zip(node.inputs, "AB")
    )
    y, alpha = op.MatMul(a, b), attribute(node, "alpha", 1.0)
    return y if alpha == 1 else op.Mul(y, alpha)


def _turned(op: GradientOps, x: Any, transpose: int, batch: int) -> ir.Value:
    order = list(range(rank(x)))
    if batch:
        order = [*order[1:-1], order[0], order[-1]]
    if transpose and len(order) > 1:
        order = [*order[:-2], order[-1], order[-2]]
    return x if order == sorted(order) else op.Transpose(x, perm=order)
