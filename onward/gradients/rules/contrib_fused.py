"""Gradients of matrix products and convolutions that onnxruntime fused with other operators.

Domain com.microsoft. Each is a composition of other operators, and is differentiated through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onward.gradients.formula import formula
from onward.gradients.gradient_ops import GradientOps, rank
from onward.gradients.rule import GradientTable
from onward.passes.value_facts import attribute, input_of

gradient = GradientTable()

MICROSOFT = "com.microsoft"
_CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_GEMM_ATTRIBUTES = ("alpha", "beta", "transA", "transB")
# fused activations and their parameters, in order
_ACTIVATIONS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


@gradient("FusedConv", domain=MICROSOFT)
@formula
def fused_conv(op: GradientOps, node: ir.Node) -> Any:
    """y = activation(conv(x, w) + b + z)"""
    x, w, b, z = (input_of(node, i) for i in range(4))
    return _convolved(op, node, x, w, b, z)


@gradient("NhwcFusedConv", "NhwcConv", domain=MICROSOFT)
@formula
def nhwc_fused_conv(op: GradientOps, node: ir.Node) -> Any:
    """The same, the channels of x, z and y last"""
    x, w, b, z = (input_of(node, i) for i in range(4))
    assert x is not None
    axes = range(rank(x))
    first, last = [0, axes[-1], *axes[1:-1]], [0, *axes[2:], 1]
    turned = None if z is None else op.Transpose(z, perm=first)
    y = _convolved(op, node, op.Transpose(x, perm=first), w, b, turned)
    return op.Transpose(y, perm=last)


@gradient("FusedGemm", domain=MICROSOFT)
@formula
def fused_gemm(op: GradientOps, node: ir.Node) -> Any:
    """y = activation(alpha a b + beta c)"""
    y = op.Gemm(*node.inputs, **_attributes(node, _GEMM_ATTRIBUTES))
    return _activated(op, y, attribute(node, "activation"), _activation_parameters(node))


@gradient("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
@formula
def fused_matmul(op: GradientOps, node: ir.Node) -> Any:
    """y = alpha a b, either transposed in its last two axes, or its first moved behind a batch"""
    a, b = (
        _transposed(
            op, x, attribute(node, f"trans{side}", 0), attribute(node, f"transBatch{side}", 0)
        )
        for x, side in zip(node.inputs, "AB")
    )
    y, alpha = op.MatMul(a, b), attribute(node, "alpha", 1.0)
    return y if alpha == 1 else op.Mul(y, alpha)


def _transposed(op: GradientOps, x: Any, transpose: int, batch: int) -> ir.Value:
    order = list(range(rank(x)))
    if batch:
        order = [*order[1:-1], order[0], order[-1]]
    if transpose and len(order) > 1:
        order = [*order[:-2], order[-1], order[-2]]
    return x if order == sorted(order) else op.Transpose(x, perm=order)


@gradient("FusedMatMulActivation", domain=MICROSOFT)
@formula
def fused_matmul_activation(op: GradientOps, node: ir.Node) -> Any:
    """y = activation(alpha a b)"""
    y = fused_matmul.forward(op, node)  # type: ignore[attr-defined]
    if attribute(node, "activation") == "Softmax":
        return op.Softmax(y, axis=attribute(node, "activation_axis", -1))
    return _activated(op, y, attribute(node, "activation"), _activation_parameters(node))


@gradient("GemmFastGelu", domain=MICROSOFT)
@formula
def gemm_fast_gelu(op: GradientOps, node: ir.Node) -> Any:
    """y = gelu(x w + bias), by its tanh approximation"""
    y, bias = op.MatMul(*node.inputs[:2]), input_of(node, 2)
    return op.Gelu(y if bias is None else op.Add(y, bias), approximate="tanh")


def _convolved(
    op: GradientOps,
    node: ir.Node,
    x: ir.Value | None,
    w: ir.Value | None,
    b: ir.Value | None,
    z: ir.Value | None,
) -> ir.Value:
    y = op.Conv(x, w, b, **_attributes(node, _CONV_ATTRIBUTES))
    name = attribute(node, "activation")
    params = dict(zip(_ACTIVATIONS.get(name, ()), attribute(node, "activation_params", ())))
    return _activated(op, y if z is None else op.Add(y, z), name, params)


def _activated(
    op: GradientOps, y: ir.Value, name: str | None, params: Mapping[str, float]
) -> ir.Value:
    """The activation of a fused node; absent parameters have the operator's defaults."""
    if not name:
        return y
    if name not in _ACTIVATIONS:
        raise ValueError(f"its activation {name!r} is not known")
    if name == "Clip":
        return op.Clip(y, params.get("min"), params.get("max"))
    given = {each: params[each] for each in _ACTIVATIONS[name] if each in params}
    made = op.node(name, [y], given)
    assert isinstance(made, ir.Value)
    return made


def _activation_parameters(node: ir.Node) -> dict[str, float]:
    """The parameters of a fused matrix product's activation."""
    names = ("alpha", "beta", "gamma")
    found = {each: attribute(node, f"activation_{each}") for each in names}
    return {each: number for each, number in found.items() if number is not None}


def _attributes(node: ir.Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: attribute(node, name) for name in names if name in node.attributes}
