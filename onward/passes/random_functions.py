"""Model-local functions of domain `onward` that draw random numbers.

    key = onward::RandomKey(draw)                         two 32-bit words, int32
    u = onward::Uniform(key, shape; node)                 uniform in [0, 1), float32
    kept = onward::DropoutMask(key, shape; node, ratio)   u >= ratio, bool
    y = onward::MaskedScale(x, mask, scale)               x * mask * scale
    y = onward::StochasticRound(x, key; node)             x in bfloat16: one of its neighbours, with
                                                          x as the mean

`draw` is an int64 vector (seed, step, micro-batch), `node` the number of the call in its model: the
numbers depend on nothing else. The bodies are integer arithmetic in standard operators, so that any
runtime can inline them; an engine with a kernel keeps the calls and draws the same bits.

The generator is counter-based, after SplitMix (Steele, Lea and Flood, 2014): SplitMix64's finalizer
makes the key of `draw`; element i is a hash of offset + i * stride, which come from the key and the
node, by a 32-bit finalizer of low bias (triple32, by C. Wellons). The numbers of one call repeat
after 2**32 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.passes.function_ops import FunctionOps

DOMAIN = "onward"
RANDOM_KEY, UNIFORM = "RandomKey", "Uniform"
DROPOUT_MASK, MASKED_SCALE = "DropoutMask", "MaskedScale"
STOCHASTIC_ROUND = "StochasticRound"
FUNCTIONS = (RANDOM_KEY, UNIFORM, DROPOUT_MASK, MASKED_SCALE, STOCHASTIC_ROUND)

# The constants of the generator, which kernels share.
DRAW_FACTORS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7)
NODE_FACTOR = 0x9E3779B9
# A finalizer: h ^= h >> shift, h *= factor, pair by pair.
MIX_64 = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None))
MIX_32 = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB), (14, None))
UINT32, UINT64, BFLOAT16 = ir.DataType.UINT32, ir.DataType.UINT64, ir.DataType.BFLOAT16
FRACTION = 24  # random bits of a number: the precision of float32
_NEXT = 0.7 * 2.0**-7  # x (1 + this) is nearest to the bfloat16 that follows x; see its body


def register(model: ir.Model, name: str) -> None:
    """Add one of this module's functions to a model that calls it."""
    model.opset_imports.setdefault(DOMAIN, 1)
    if (DOMAIN, name, "") not in model.functions:
        function = _function(name, model.opset_imports[""])
        model.functions[function.identifier()] = function


def calls(graph: ir.Graph, *names: str) -> list[ir.Node]:
    """The calls of these functions in a graph, in order."""
    return [node for node in graph if node.domain == DOMAIN and node.op_type in names]


def _function(name: str, opset: int) -> ir.Function:
    graph = ir.Graph((), (), nodes=(), opset_imports={"": opset}, name=name)
    op = FunctionOps(graph, set(), graph.opset_imports)
    result, attributes = _BODIES[name](op)
    result.name = "result"
    graph.outputs.append(result)
    parameters = [ir.Attr(each, kind, None) for each, kind in attributes.items()]
    return ir.Function(DOMAIN, name, graph=graph, attributes=parameters)


_Attributes = dict[str, ir.AttributeType]
_Body = Callable[[FunctionOps], tuple[ir.Value, _Attributes]]


def _random_key(op: FunctionOps) -> tuple[ir.Value, _Attributes]:
    """The halves of mix(a seed + b step + c micro)"""
    words = op.Mul(_cast(op, op.argument("draw"), UINT64), np.array(DRAW_FACTORS, np.uint64))
    first, second, third = (op.Gather(words, [i]) for i in range(3))
    total = op.Add(op.Add(first, second), third)  # onnxruntime's ReduceSum does not wrap around
    key = _mix(op, total, MIX_64, np.uint64)
    low, high = op.BitwiseAnd(key, np.uint64(0xFFFFFFFF)), _shifted(op, key, 32, np.uint64)
    words = _cast(op, op.Concat(low, high, axis=0), UINT32)
    return _cast(op, words, ir.DataType.INT32), {}


def _uniform(op: FunctionOps) -> tuple[ir.Value, _Attributes]:
    """u = mix(offset + i stride) / 2**32"""
    key, shape = op.argument("key"), op.argument("shape")
    node = op.attribute("node", ir.AttributeType.INT)
    return _numbers(op, key, shape, node), {"node": ir.AttributeType.INT}


def _dropout_mask(op: FunctionOps) -> tuple[ir.Value, _Attributes]:
    """u >= ratio"""
    key, shape = op.argument("key"), op.argument("shape")
    node = op.attribute("node", ir.AttributeType.INT)
    ratio = op.attribute("ratio", ir.AttributeType.FLOAT)
    kept = op.GreaterOrEqual(_numbers(op, key, shape, node), ratio)
    return kept, {"node": ir.AttributeType.INT, "ratio": ir.AttributeType.FLOAT}


def _masked_scale(op: FunctionOps) -> tuple[ir.Value, _Attributes]:
    """x * (mask * scale), the factor rounded once to x's type"""
    x, mask, scale = op.argument("x"), op.argument("mask"), op.argument("scale")
    factor = op.Mul(op.CastLike(mask, scale), scale)
    return op.Mul(x, op.CastLike(factor, x)), {}


def _stochastic_round(op: FunctionOps) -> tuple[ir.Value, _Attributes]:
    """y = away if u >= 1 - p else t, where p = (x - t) / (away - t)

    t is x without the bits that bfloat16 lacks, `away` the next bfloat16 away from 0. A bfloat16 is
    m 2**e with 1 <= m < 2 and steps of 2**(e - 7): m 0.7 steps are between 0.7 and 1.4 of them
    (1.4 of the half ones below m = 1), nearest to one. Numbers below 2**-126 are rounded to 0, or
    to the nearest.
    """
    x, key = op.argument("x"), op.argument("key")
    node = op.attribute("node", ir.AttributeType.INT)
    nearest = _rounded(op, x)
    toward_0 = _rounded(op, op.Sub(nearest, op.Mul(nearest, np.float32(_NEXT))))
    t = op.Where(op.Greater(op.Abs(nearest), op.Abs(x)), toward_0, nearest)
    away = _rounded(op, op.Add(t, op.Mul(t, np.float32(_NEXT))))
    p = op.Div(op.Sub(x, t), op.Sub(away, t))
    moves = op.GreaterOrEqual(_numbers(op, key, op.Shape(x), node), op.Sub(np.float32(1.0), p))
    return _cast(op, op.Where(moves, away, t), BFLOAT16), {"node": ir.AttributeType.INT}


def _rounded(op: FunctionOps, x: ir.Value) -> ir.Value:
    """x rounded to the nearest bfloat16, in float32"""
    return _cast(op, _cast(op, x, BFLOAT16), ir.DataType.FLOAT)


_BODIES: dict[str, _Body] = {
    RANDOM_KEY: _random_key,
    UNIFORM: _uniform,
    DROPOUT_MASK: _dropout_mask,
    MASKED_SCALE: _masked_scale,
    STOCHASTIC_ROUND: _stochastic_round,
}


def _numbers(op: FunctionOps, key: ir.Value, shape: ir.Value, node: ir.Value) -> ir.Value:
    """Uniform numbers of a shape."""
    words = _cast(op, key, UINT32)
    low, high = (op.Gather(words, np.int64(i)) for i in range(2))
    own = op.Mul(_cast(op, node, UINT32), np.uint32(NODE_FACTOR))
    own = _mix(op, own, MIX_32, np.uint32)
    offset, stride = op.Add(low, own), op.BitwiseOr(op.BitwiseXor(high, own), np.uint32(1))
    index = op.Range(np.int64(0), op.ReduceProd(shape, keepdims=0), np.int64(1))
    state = op.Add(op.Mul(_cast(op, index, UINT32), stride), offset)
    bits = _shifted(op, _mix(op, state, MIX_32, np.uint32), 32 - FRACTION, np.uint32)
    numbers = op.Mul(_cast(op, bits, ir.DataType.FLOAT), np.float32(2.0**-FRACTION))
    shaped: ir.Value = op.Reshape(numbers, shape, allowzero=1)
    return shaped


def _mix(op: FunctionOps, h: ir.Value, steps: Any, kind: Any) -> ir.Value:
    for shift, factor in steps:
        h = op.BitwiseXor(h, _shifted(op, h, shift, kind))
        if factor is not None:
            h = op.Mul(h, kind(factor))
    return h


def _shifted(op: FunctionOps, h: ir.Value, by: int, kind: Any) -> ir.Value:
    shifted: ir.Value = op.BitShift(h, kind(by), direction="RIGHT")
    return shifted


def _cast(op: FunctionOps, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    cast: ir.Value = op.Cast(value, to=int(dtype))
    return cast
