"""Count the floating-point operations of each operator, from the shapes of its tensors.

Counted for a kernel that follows the operator's definition: a multiply-add is 2, one result of an
elementwise function (exp, erf, sqrt, a comparison) is 1, data movement is 0. Integer
arithmetic of quantised operators counts alike. Padding of a convolution counts as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onward.graph.einsum_letters import expand_equation
from onward.graph.operator_table import OpTable
from onward.graph.operators import RECURRENT, REDUCTIONS, VARIADIC, named

FLOPS = OpTable()
MICROSOFT = "com.microsoft"


class UnknownShape(Exception):
    """A shape that a rule needs is not known."""


@dataclass(frozen=True)
class Tensor:
    """The type and shape of a tensor, as far as they are known."""

    dtype: ir.DataType | None
    shape: tuple[int, ...] | None

    @property
    def dims(self) -> tuple[int, ...]:
        if self.shape is None:
            raise UnknownShape
        return self.shape

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        if self.dtype is None:
            raise UnknownShape
        if self.dtype is ir.DataType.STRING:
            return self.size * 8  # a pointer each
        return math.ceil(self.size * self.dtype.bitwidth / 8)


@dataclass(frozen=True)
class NodeCall:
    """One node with the tensors that it reads and writes."""

    node: ir.Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] is not None

    def input(self, place: int) -> Tensor:
        tensor = self.inputs[place] if place < len(self.inputs) else None
        if tensor is None:
            raise UnknownShape
        return tensor

    @property
    def out(self) -> Tensor:
        if not self.outputs or self.outputs[0] is None:
            raise UnknownShape
        return self.outputs[0]

    def number(self, name: str, default: int = 0) -> int:
        return self.node.attributes.get_int(name, default)

    def ints(self, name: str) -> Sequence[int]:
        given: Any = self.node.attributes.get_ints(name)
        return list(given or ())

    def text(self, name: str, default: str = "") -> str:
        return self.node.attributes.get_string(name, default)


# -- elementwise: FLOPs of one result ----------------------------------------------------------

_EACH = {
    1: "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Ceil Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less "
    "LessOrEqual Log Mul Neg Not Or Pow PRelu Reciprocal Relu Round Sign Sin Sinh Sqrt Sub Tan "
    "Tanh ThresholdedRelu Xor CumSum CumProd Bernoulli RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike Binarizer",
    2: "Clip DequantizeLinear LeakyRelu Mod Shrink Softsign",
    3: "Elu HardSigmoid QuantizeLinear Softplus",
    4: "Celu HardSwish Selu Sigmoid",
    5: "Gelu LogSoftmax Softmax Swish",
    6: "Mish",
    7: "Hardmax",
}
_EACH_MICROSOFT = {
    2: "DequantizeLinear",
    3: "QuantizeLinear RotaryEmbedding",
    5: "Gelu QuickGelu",
    6: "BiasGelu QLinearAdd QLinearMul QLinearLeakyRelu",
    7: "FastGelu QLinearSigmoid",
    8: "BiasSplitGelu QLinearSoftmax BiasSoftmax",
}


# Operators whose cost depends only on the shapes of their inputs and outputs.
COUNTED_BY_SHAPE = VARIADIC.union(*map(named, _EACH.values()))


def _each(count: int) -> Callable[[NodeCall], float]:
    return lambda call: count * call.out.size


for _count, _names in _EACH.items():
    FLOPS(*_names.split())(_each(_count))
for _count, _names in _EACH_MICROSOFT.items():
    FLOPS(*_names.split(), domain=MICROSOFT)(_each(_count))


@FLOPS(*VARIADIC)
def _variadic(call: NodeCall) -> float:
    inputs = sum(tensor is not None for tensor in call.inputs)
    return call.out.size * (inputs - 1 + (call.node.op_type == "Mean"))


# -- matrix products ---------------------------------------------------------------------------


def _product(call: NodeCall, depth: int) -> float:
    return 2 * call.out.size * depth


@FLOPS("MatMul", "MatMulInteger", "QLinearMatMul")
@FLOPS("QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MICROSOFT)
def _matmul(call: NodeCall) -> float:
    return _product(call, call.input(0).dims[-1])


@FLOPS("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def _fused_matmul(call: NodeCall) -> float:
    dims = call.input(0).dims
    return _product(call, dims[-2] if call.number("transA") and len(dims) > 1 else dims[-1])


@FLOPS("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", domain=MICROSOFT)
def _matmul_bits(call: NodeCall) -> float:
    return _product(call, call.number("K") or call.input(0).dims[-1])


@FLOPS("Gemm")
@FLOPS("FusedGemm", "GemmFloat8", domain=MICROSOFT)
def _gemm(call: NodeCall) -> float:
    dims = call.input(0).dims
    activation = call.out.size * bool(call.text("activation"))
    product = _product(call, dims[0] if call.number("transA") else dims[1])
    return product + call.out.size * call.has(2) + activation


@FLOPS("QGemm", domain=MICROSOFT)
def _qgemm(call: NodeCall) -> float:
    return _product(call, call.input(0).dims[0 if call.number("transA") else 1])


@FLOPS("Einsum")
def _einsum(call: NodeCall) -> float:
    """Every product of the operands, added up where an index is summed over."""
    equation = call.text("equation")
    operands = [call.input(place).dims for place in range(len(call.inputs))]
    terms, result = expand_equation(equation, [len(dims) for dims in operands])
    sizes: dict[str, int] = {}
    for term, dims in zip(terms, operands):
        for letter, size in zip(term, dims, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    every = math.prod(sizes.values())
    summed = every > call.out.size or ("->" in equation and not result)
    return every * (len(terms) - 1 + summed)


# -- convolution -------------------------------------------------------------------------------

_WEIGHT = {"QLinearConv": 3}  # where the weight is, if not second


@FLOPS("Conv", "ConvInteger", "QLinearConv")
@FLOPS("FusedConv", "NhwcConv", "NhwcFusedConv", "QLinearConv", domain=MICROSOFT)
@FLOPS("Conv", domain="com.microsoft.nchwc")
@FLOPS("Conv", "QLinearConv", domain="com.ms.internal.nhwc")
def _conv(call: NodeCall) -> float:
    """Each result is a product with its group's filter: channels / group x kernel."""
    quantised = call.node.op_type == "QLinearConv"
    weight = call.input(_WEIGHT.get(call.node.op_type, 1))
    bias = call.has(8) if quantised else call.has(2)
    added = bias + (not quantised and call.has(3)) + bool(call.text("activation"))
    if call.node.op_type == "ConvInteger":
        added = False
    return _product(call, math.prod(weight.dims[1:])) + added * call.out.size


@FLOPS("ConvTranspose")
@FLOPS("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def _conv_transpose(call: NodeCall) -> float:
    """Each element goes, multiplied, to the outputs of its group x kernel."""
    product = 2 * call.input(0).size * math.prod(call.input(1).dims[1:])
    return product + call.out.size * call.has(2)


@FLOPS("DeformConv")
def _deform_conv(call: NodeCall) -> float:
    weight = call.input(1).dims
    batch, places = call.out.dims[0], math.prod(call.out.dims[2:])
    samples = batch * call.input(0).dims[1] * math.prod(weight[2:]) * places
    sampled = samples * (8 + call.has(4))  # four corners, multiplied and added; the mask
    return _product(call, math.prod(weight[1:])) + sampled + call.out.size * call.has(3)


# -- pooling, reductions -----------------------------------------------------------------------


@FLOPS("MaxPool", "AveragePool", "LpPool")
@FLOPS("MaxPool", "AveragePool", domain="com.microsoft.nchwc")
@FLOPS("MaxPool", "AveragePool", domain="com.ms.internal.nhwc")
@FLOPS("QLinearAveragePool", "NhwcMaxPool", domain=MICROSOFT)
def _pool(call: NodeCall) -> float:
    window = math.prod(call.ints("kernel_shape"))
    return call.out.size * window * (3 if call.node.op_type == "LpPool" else 1)


@FLOPS("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
@FLOPS("GlobalAveragePool", "GlobalMaxPool", domain="com.microsoft.nchwc")
@FLOPS("GlobalAveragePool", "GlobalMaxPool", domain="com.ms.internal.nhwc")
@FLOPS("QLinearGlobalAveragePool", domain=MICROSOFT)
def _global_pool(call: NodeCall) -> float:
    return call.input(0).size * (3 if "Lp" in call.node.op_type else 1)


_REDUCED = {"ReduceL2": 2, "ReduceSumSquare": 2, "ReduceLogSum": 1, "ReduceLogSumExp": 3}


@FLOPS(*REDUCTIONS, "ArgMax", "ArgMin", "NonZero")
def _reduce(call: NodeCall) -> float:
    return call.input(0).size * _REDUCED.get(call.node.op_type, 1)


@FLOPS("TopK")
def _top_k(call: NodeCall) -> float:
    """A heap of k: one comparison a level for each element."""
    axis = call.number("axis", -1)
    k = max(2, call.out.dims[axis])
    return call.input(0).size * math.ceil(math.log2(k))


# -- normalisation -----------------------------------------------------------------------------


@FLOPS("BatchNormalization")
def _batch_norm(call: NodeCall) -> float:
    """Running: one multiply-add. Training: mean, variance and both."""
    return call.input(0).size * (7 if call.number("training_mode") else 2)


@FLOPS("LayerNormalization", "InstanceNormalization", "GroupNormalization")
@FLOPS("MeanVarianceNormalization", "LpNormalization", "RMSNormalization", "LRN")
@FLOPS("SimplifiedLayerNormalization")
@FLOPS("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
@FLOPS("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _norm(call: NodeCall) -> float:
    """Mean 1, deviation 1, variance 2, scaled 1, weight 1, bias 1; the skip's own additions."""
    name = call.node.op_type
    each = 5 if "RMS" in name or "Simplified" in name else 3 if name == "LpNormalization" else 7
    if name == "MeanVarianceNormalization":
        each = 5
    if name == "LRN":
        each = call.number("size", 1) * 2 + 3
    return call.input(0).size * (each + name.startswith("Skip"))


@FLOPS("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_norm(call: NodeCall) -> float:
    return call.out.size * 9


# -- recurrent ---------------------------------------------------------------------------------

_GATES = {"LSTM": 16, "GRU": 14, "RNN": 3}  # elementwise FLOPs of one hidden unit in one step


@FLOPS(*RECURRENT)
@FLOPS("DynamicQuantizeLSTM", domain=MICROSOFT)
def _recurrent(call: NodeCall) -> float:
    """Each step multiplies its input by w and its state by r, in every direction."""
    time, batch = call.input(0).dims[:2]
    weights, states = call.input(1), call.input(2)
    hidden = call.number("hidden_size") or states.dims[-1]
    gates = _GATES[call.node.op_type.removeprefix("DynamicQuantize")] * weights.dims[0] * hidden
    return time * batch * (2 * (weights.size + states.size) + gates)


# -- sampling, signals, linear algebra ---------------------------------------------------------


@FLOPS("Resize", "Upsample")
def _resize(call: NodeCall) -> float:
    """Axis by axis: two neighbours (linear) or four (cubic), a multiply-add each."""
    mode = call.text("mode", "nearest")
    taps = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4}.get(mode, 0)
    changed = sum(a != b for a, b in zip(call.input(0).dims, call.out.dims))
    return 2 * call.out.size * (taps**changed if taps else 0)


@FLOPS("GridSample", "AffineGrid", "RoiAlign", "MaxRoiPool")
def _sample(call: NodeCall) -> float:
    if call.node.op_type == "GridSample" and call.text("mode", "linear") == "nearest":
        return 0
    return call.out.size * 8


@FLOPS("DFT", "STFT")
def _transform(call: NodeCall) -> float:
    """5 n log2 n for each transform of n."""
    dims = call.out.dims
    n = max(2, dims[-2]) if len(dims) > 1 else 2
    return 5 * math.prod(dims[:-1]) * math.log2(n)


@FLOPS("Det")
def _det(call: NodeCall) -> float:
    n = call.input(0).dims[-1]
    return call.input(0).size * n * 2 / 3


@FLOPS("DynamicQuantizeLinear")
def _dynamic_quantize(call: NodeCall) -> float:
    return call.input(0).size * 5


@FLOPS("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _loss(call: NodeCall) -> float:
    return call.input(0).size * 5 if call.node.op_type.startswith("Softmax") else call.input(1).size
