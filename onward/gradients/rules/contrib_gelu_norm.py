"""Gradients of com.microsoft's Gelu, Bias and LayerNormalization operators, of transformers.

Each is a composition of other operators, and is differentiated through them. ONNX has no schemas of
them, so defaults of attributes are written here.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.value_facts import attribute, input_of

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


@gradient("BiasSplitGelu", domain=MICROSOFT)
@formula
def bias_split_gelu(op: GradientOps, node: ir.Node) -> Any:
    """y = left gelu(right), the halves of x + bias"""
    left, right = op.Split(op.Add(*node.inputs), axis=-1, num_outputs=2, outputs=2)
    return op.Mul(left, op.Gelu(right))


@gradient("BiasAdd", domain=MICROSOFT)
@formula
def bias_add(op: GradientOps, node: ir.Node) -> Any:
    """y = x + bias + skip"""
    x, bias, skip = node.inputs
    return op.Add(op.Add(x, bias), skip)


@gradient("BiasSoftmax", domain=MICROSOFT)
@formula
def bias_softmax(op: GradientOps, node: ir.Node) -> Any:
    """y = softmax(x + bias) over all axes from `axis` on"""
    x, bias = node.inputs
    assert x is not None
    axis, total = attribute(node, "axis", 1) % rank(x), op.Add(x, bias)
    if axis == rank(x) - 1:
        return op.Softmax(total, axis=-1)
    return op.reshape_as(op.Softmax(op.Flatten(total, axis=axis), axis=-1), x)


@gradient("EmbedLayerNormalization", domain=MICROSOFT)
@formula
def embed_layer_normalization(op: GradientOps, node: ir.Node) -> Any:
    """y = layer_norm(word + position + segment) gamma + beta; and a count of words, the sum"""
    ids, segments, words, positions, kinds, gamma, beta = node.inputs[:7]
    places = input_of(node, 8)
    assert ids is not None
    if places is None:
        place = op.Slice(positions, [0], op.shape(op.size(ids, 1)), [0])
    else:
        place = op.Gather(positions, places, axis=0)
    total = op.Add(op.Gather(words, ids, axis=0), place)
    if segments is not None and kinds is not None:
        total = op.Add(total, op.Gather(kinds, segments, axis=0))
    epsilon = attribute(node, "epsilon", 1e-12)
    return op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon), None, total


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
