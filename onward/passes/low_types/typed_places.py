"""Which operators may compute in 16 bits, and which of a node's values then have 16 bits.

An operator's schema says which type parameter each input and output has: `T` of MatMul may be
float16, while the scales of Resize are always float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.operators import named

_TYPE_NAMES = {
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
}

# Sums of many terms, and functions that grow or fall fast: 16 bits lose too much of them.
SENSITIVE = named(
    "Softmax LogSoftmax LayerNormalization InstanceNormalization GroupNormalization "
    "RMSNormalization MeanVarianceNormalization LpNormalization LRN "
    "ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ReduceLogSumExp CumSum CumProd GlobalLpPool Mean Sum "
    "Exp Log Pow Sqrt Reciprocal Sin Cos Tan Softplus Sinh Cosh Acosh Atanh Det Einsum "
    "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss LSTM GRU RNN"
)  # a recurrent operator sums over many steps
# They count positions, draw boxes or sample: rounding would change which elements they choose.
CHOOSING = named(
    "Resize Upsample GridSample AffineGrid RoiAlign MaxRoiPool NonMaxSuppression TopK ArgMax "
    "ArgMin Hardmax Range Floor Ceil Round Mod Equal Unique"
)
# Their output's type is an attribute, or they convert between types themselves.
_TYPED = named(
    "Cast CastLike BitCast ConstantOfShape EyeLike QuantizeLinear DequantizeLinear "
    "DynamicQuantizeLinear QLinearConv QLinearMatMul MatMulInteger ConvInteger Bernoulli "
    "Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike Constant Identity "
    "BlackmanWindow HammingWindow HannWindow MelWeightMatrix DFT STFT"
)


@dataclass(frozen=True)
class Typed:
    """The inputs and outputs of a node, by their places, that change to 16 bits."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def why_float(node: ir.Node) -> str:
    """Why a node stays float32 because of its operator; "" if it need not."""
    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain}::{node.op_type} is not an operator of ONNX"
    if node.op_type in SENSITIVE:
        return f"{node.op_type} loses too much in 16 bits"
    if node.op_type in CHOOSING:
        return f"rounding would change what {node.op_type} chooses"
    return ""


def find_types(node: ir.Node, opset: int, kind: ir.DataType) -> Typed | None:
    """The places that change together if a node computes in 16 bits; None if it has no float32."""
    if node.op_type in _TYPED or any(a.type is ir.AttributeType.GRAPH for a in _attributes(node)):
        return None
    if not onnx.defs.has(node.op_type, max_inclusive_version=opset):
        return None
    schema = onnx.defs.get_schema(node.op_type, opset)
    if not all(_is_tensor(value) for value in (*node.inputs, *node.outputs)):
        return None
    allowed = {
        each.type_param_str
        for each in schema.type_constraints
        if _TYPE_NAMES[kind] in each.allowed_type_strs
    }
    inputs = tuple(_places(node.inputs, schema.inputs, allowed))
    read = {_formal(schema.inputs, place).type_str for place in inputs}
    outputs = tuple(_places(node.outputs, schema.outputs, read))
    if not inputs or not outputs or _is_split(node, schema, read, inputs):
        return None
    return Typed(inputs, outputs)


def _places(values: Sequence[ir.Value | None], formal: Any, allowed: set[str]) -> Iterator[int]:
    for place, value in enumerate(values):
        is_float = value is not None and value.dtype == ir.DataType.FLOAT
        if is_float and _formal(formal, place).type_str in allowed:
            yield place


def _is_split(node: ir.Node, schema: Any, read: set[str], inputs: tuple[int, ...]) -> bool:
    """Whether a float32 output has a type parameter that no changed input has."""
    return any(
        value.dtype == ir.DataType.FLOAT
        and _formal(schema.outputs, place).type_str not in read
        and not _formal(schema.outputs, place).type_str.startswith("tensor(")
        for place, value in enumerate(node.outputs)
    )


def _formal(formal: Any, place: int) -> Any:
    """The formal parameter at a place; the last one may stand for many."""
    return formal[min(place, len(formal) - 1)]


def _attributes(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())


def _is_tensor(value: ir.Value | None) -> bool:
    return value is None or not value.name or isinstance(value.type, ir.TensorType)
