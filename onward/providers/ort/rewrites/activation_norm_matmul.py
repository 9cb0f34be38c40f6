"""Rules for activations, normalisations and matrix products of a training model.

For stock onnxruntime's CPU kernels. An activation's gradient computes the same error function,
sigmoid or hyperbolic tangent as the activation: the rules write the activation with the gradient's
nodes, and `share_expressions` then merges each pair. Matrix products become Gemm and FusedMatMul.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.simplify.consecutive_nodes import order_of
from onward.passes.simplify.transposed_products import swaps_last_axes
from onward.passes.value_facts import (
    attribute,
    dims,
    input_of,
    ints,
    is_float,
    is_scalar,
    like,
    made_by,
    rank,
    reads_once,
    scalar,
)

rule = Rules()
norm_rule = Rules()  # where the norm's kernel is slower than its formula

MICROSOFT = "com.microsoft"
_SMALL = 8192  # elements, up to which one kernel is faster than fewer operations


# -- activations and their gradients -----------------------------------------------------------


@rule("Gelu")
def gelu(op: Ops, node: ir.Node) -> Replacement:
    """gelu(x) = x Phi(x), where the gradient computes Phi(x) = erf(x / sqrt 2) / 2 + 1/2 too."""
    x = node.inputs[0]
    if attribute(node, "approximate", "none") == "tanh":
        return _tanh_gelu(op, node)
    for u in _read_by(x, "Mul"):
        for e in _read_by(u.outputs[0], "Erf"):
            for half in _read_by(e.outputs[0], "Mul"):
                for area in _read_by(half.outputs[0], "Add"):
                    if not is_scalar(u.inputs[1], math.sqrt(0.5)) or not _halves(half, area):
                        continue
                    inner = op.Erf(op.Mul(x, u.inputs[1]))
                    return op.Mul(x, op.Add(op.Mul(inner, half.inputs[1]), area.inputs[1]))
    return None


@rule("Add")
def half_of_erf(op: Ops, node: ir.Node) -> Replacement:
    """erf(u) / 2 + 1/2 = hard_sigmoid(erf(u)), one kernel: the result is always in 0 .. 1."""
    half = made_by(node.inputs[0], "Mul")
    erf = None if half is None else made_by(half.inputs[0], "Erf")
    if half is None or erf is None or not _halves(half, node):
        return None
    return op.HardSigmoid(half.inputs[0], alpha=0.5, beta=0.5)


def _halves(half: ir.Node, area: ir.Node) -> bool:
    return is_scalar(half.inputs[1], 0.5) and is_scalar(area.inputs[1], 0.5)


def _tanh_gelu(op: Ops, node: ir.Node) -> Replacement:
    """gelu(x) = x s, where the gradient computes s = sigmoid(x (c k x^2 + c)) too."""
    x = node.inputs[0]
    c, k = 2 * math.sqrt(2 / math.pi), 0.044715
    for square in _read_by(x, "Mul"):
        if list(square.inputs) != [x, x]:
            continue
        for scaled in _read_by(square.outputs[0], "Mul"):
            for shifted in _read_by(scaled.outputs[0], "Add"):
                if not is_scalar(scaled.inputs[1], c * k) or not is_scalar(shifted.inputs[1], c):
                    continue
                inner = op.Add(op.Mul(op.Mul(x, x), scaled.inputs[1]), shifted.inputs[1])
                return op.Mul(x, op.Sigmoid(op.Mul(x, inner)))
    return None


@rule("Swish")
def swish(op: Ops, node: ir.Node) -> Replacement:
    """swish(x) = x sigmoid(a x), where the gradient computes the sigmoid too."""
    x, alpha = node.inputs[0], attribute(node, "alpha", 1.0)
    if alpha == 1 and _read_by(x, "Sigmoid"):
        return op.Mul(x, op.Sigmoid(x))
    for inner in _read_by(x, "Mul"):
        if is_scalar(inner.inputs[1], alpha) and _read_by(inner.outputs[0], "Sigmoid"):
            return op.Mul(x, op.Sigmoid(op.Mul(x, inner.inputs[1])))
    return None


@rule("Mish")
def mish(op: Ops, node: ir.Node) -> Replacement:
    """mish(x) = x tanh(softplus(x)), where the gradient computes the tanh too."""
    x = node.inputs[0]
    for inner in _read_by(x, "Softplus"):
        if _read_by(inner.outputs[0], "Tanh"):
            return op.Mul(x, op.Tanh(op.Softplus(x)))
    return None


def _read_by(value: ir.Value | None, operator: str) -> list[ir.Node]:
    """The nodes of an operator that have this value as their first input."""
    users = () if value is None else value.uses()
    return [node for node, i in users if i == 0 and node.op_type == operator and not node.domain]


# -- normalisation -----------------------------------------------------------------------------


@norm_rule("LayerNormalization")
def layer_normalization(op: Ops, node: ir.Node) -> Replacement:
    """Write out the formula where a gradient reads mean and deviation: it shares xhat.

    On aarch64 onnxruntime's kernel is not vectorised and slower (benchmarks/backward.py, tf8).
    """
    x, scale, bias = node.inputs[0], node.inputs[1], input_of(node, 2)
    depth, shape = rank(x), dims(x)
    if x is None or x.dtype != ir.DataType.FLOAT or depth is None or shape is None:
        return None
    if len(node.outputs) != 3 or not all(value.uses() for value in node.outputs[1:]):
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) == len(shape) and math.prod(sizes) < _SMALL:
        return None
    axes = list(range(attribute(node, "axis", -1) % depth, depth))
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1)
    epsilon = like(attribute(node, "epsilon", 1e-5), x)
    inverse = op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))
    y = op.Mul(op.Mul(centred, inverse), scale)
    return [y if bias is None else op.Add(y, bias), mean, inverse]


@rule("RMSNormalization")
def rms_normalization(op: Ops, node: ir.Node) -> Replacement:
    """x inv scale, where the gradient computes inv = 1 / sqrt(mean(x x) + epsilon) too."""
    x, scale = node.inputs[:2]
    epsilon, depth = attribute(node, "epsilon", 1e-5), rank(x)
    if x is None or scale is None or x.dtype != scale.dtype or depth is None:
        return None
    axes = list(range(attribute(node, "axis", -1) % depth, depth))
    for square in _read_by(x, "Mul"):
        for mean in _read_by(square.outputs[0], "ReduceMean"):
            for add in _read_by(mean.outputs[0], "Add"):
                fits = list(square.inputs) == [x, x] and ints(input_of(mean, 1)) == axes
                if not fits or not is_scalar(add.inputs[1], epsilon):
                    continue
                squares = op.ReduceMean(op.Mul(x, x), mean.inputs[1], **mean.attributes)
                inverse = op.Reciprocal(op.Sqrt(op.Add(squares, add.inputs[1])))
                return op.Mul(op.Mul(x, inverse), scale)
    return None


# -- matrix products ---------------------------------------------------------------------------


@rule("MatMul")
def batched_matmul_as_gemm(op: Ops, node: ir.Node) -> Replacement:
    """A batch of rows times one matrix = one Gemm, on the same rows that the gradient reads."""
    a, b = node.inputs
    shape, depth = dims(node.outputs[0]), rank(a)
    if depth is None or depth < 3 or rank(b) != 2 or shape is None or not is_float(a):
        return None
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes[-1] < 1 or 0 in sizes:
        return None
    transpose = made_by(b, "Transpose")
    matrix = b if transpose is None or order_of(transpose) != [1, 0] else transpose.inputs[0]
    rows = op.Gemm(op.Flatten(a, axis=depth - 1), matrix, transB=int(matrix is not b))
    if sizes.count(-1) < 2:
        return op.Reshape(rows, sizes)
    leading = op.Shape(a, start=0, end=depth - 1)
    return op.Reshape(rows, op.Concat(leading, sizes[-1:], axis=0))


@rule("Add")
def bias_into_gemm(op: Ops, node: ir.Node) -> Replacement:
    """reshape(gemm(a, b)) + c = reshape(gemm(a, b, c)), for one c for each column."""
    for value, bias in (node.inputs, node.inputs[::-1]):
        reshape = made_by(value, "Reshape")
        gemm = None if reshape is None else made_by(reshape.inputs[0], "Gemm")
        if reshape is None or gemm is None or value is None or not reads_once(value):
            continue
        product, whole, width = gemm.outputs[0], dims(value), dims(bias)
        if not reads_once(product) or input_of(gemm, 2) is not None or whole is None:
            continue
        if width is None or len(width) != 1 or width[0] != whole[-1] or None in width:
            continue
        rows = op.Gemm(*gemm.inputs[:2], bias, **{**gemm.attributes, "beta": 1.0})
        return op.Reshape(rows, reshape.inputs[1])
    return None


@rule("MatMul")
def fused_matmul(op: Ops, node: ir.Node) -> Replacement:
    """a' b, a b' and (c a) b as one FusedMatMul, with the transpose and the factor inside."""
    operands, turned, alpha = list(node.inputs), [0, 0], 1.0
    ranks = [rank(x) or 0 for x in operands]
    if node.outputs[0].dtype != ir.DataType.FLOAT or min(ranks) < 2 or ranks[0] > ranks[1] == 2:
        return None  # batches times one matrix are one Gemm, but not if they are transposed
    for index, value in enumerate(node.inputs):
        factor, inner = _factor(value)
        transpose = made_by(inner, "Transpose")
        if transpose is not None and swaps_last_axes(transpose):
            inner, turned[index] = transpose.inputs[0], 1
        operands[index], alpha = inner, alpha * factor
    if operands == list(node.inputs):
        return None
    value = op.FusedMatMul(*operands, transA=turned[0], transB=turned[1], alpha=alpha)
    maker = value.producer()
    assert maker is not None
    maker.domain = MICROSOFT
    return value


def _factor(value: ir.Value | None) -> tuple[float, ir.Value | None]:
    """c and x, where the value is c x or x / c and only matrix products read it."""
    scale = made_by(value, "Mul", "Div")
    number = None if scale is None else scalar(scale.inputs[1])
    if value is None or scale is None or number is None or not is_float(value):
        return 1.0, value
    if not _read_by_products(value):
        return 1.0, value
    if rank(scale.inputs[0]) != rank(value):
        return 1.0, value
    return (number if scale.op_type == "Mul" else 1 / number), scale.inputs[0]


_MATMULS = ("MatMul", "FusedMatMul")


def _read_by_products(value: ir.Value) -> bool:
    """Whether only matrix products read the value, also through a Transpose that they take in."""
    return not value.is_graph_output() and all(
        user.op_type in _MATMULS
        or (
            user.op_type == "Transpose"
            and swaps_last_axes(user)
            and _read_by_products(user.outputs[0])
        )
        for user, _ in value.uses()
    )


@rule("Mul", "Div")
def scaled_product(op: Ops, node: ir.Node) -> Replacement:
    """c (a b) = fused(a, b, alpha = c), where only this node reads the matrix product."""
    product, number = node.inputs[0], scalar(node.inputs[1])
    maker = None if product is None else product.producer()
    if product is None or maker is None or number is None or maker.op_type not in _MATMULS:
        return None
    if not reads_once(product) or product.dtype != ir.DataType.FLOAT or number == 0:
        return None
    if rank(product) != rank(node.outputs[0]) or any((rank(x) or 0) < 2 for x in maker.inputs):
        return None
    alpha = attribute(maker, "alpha", 1.0) * (number if node.op_type == "Mul" else 1 / number)
    value = op.FusedMatMul(*maker.inputs, **{**maker.attributes, "alpha": alpha})
    made = value.producer()
    assert made is not None
    made.domain = MICROSOFT
    return value
