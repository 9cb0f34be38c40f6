"""Model-local functions of domain `onward`: products of linear layers in 8-bit floats.

    y, qx, qw, largest = onward::Float8Linear(x, w, scales)          y = x w
    dx, dw, largest = onward::Float8LinearGrad(dy, qx, qw, scales)   dx = dy w', dw = x' dy

`x` and `w` are rounded to e4m3 (4 bits of exponent, 3 of mantissa), `dy` to e5m2, each after a
division by its scale: `scales` are those of x, w and dy, in float32. Larger numbers than the type
has are cut off; infinite ones become NaN, so that a result is not finite by mistake. `largest` are
the largest absolute values of x and w, and of dy, of which later scales are computed.

The bodies multiply the rounded numbers in float32, so that any runtime computes the same numbers,
but for the order of sums; an engine with 8-bit products keeps the calls.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.scopes import COMPOSITES
from onward.passes.function_ops import FunctionOps

FLOAT8_LINEAR, FLOAT8_LINEAR_GRAD = "Float8Linear", "Float8LinearGrad"
E4M3, E5M2 = ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2
LARGEST_E4M3, LARGEST_E5M2 = 448.0, 57344.0
_FLOAT = int(ir.DataType.FLOAT)


def add_float8_function(
    functions: dict[ir.OperatorIdentifier, ir.Function], name: str, opset: int
) -> None:
    """Add one of this module's functions to those of a model, in an opset."""
    if (COMPOSITES, name, "") in functions:
        return
    graph = ir.Graph((), (), nodes=(), opset_imports={"": opset}, name=name)
    body = _linear if name == FLOAT8_LINEAR else _linear_gradient
    for i, result in enumerate(body(FunctionOps(graph, set(), graph.opset_imports))):
        result.name = f"result_{i}"
        graph.outputs.append(result)
    function = ir.Function(COMPOSITES, name, graph=graph, attributes=())
    functions[function.identifier()] = function


def _linear(op: FunctionOps) -> list[ir.Value]:
    """y = (qx qw) sx sw, qx = round(x / sx), qw = round(w / sw)"""
    x, w, scales = (op.argument(name) for name in ("x", "w", "scales"))
    sx, sw = (op.Gather(scales, np.int64(i)) for i in range(2))
    (qx, ax), (qw, aw) = _rounded(op, x, sx, E4M3), _rounded(op, w, sw, E4M3)
    y = op.MatMul(_float(op, qx), _float(op, qw))
    return [_scaled(op, y, sx, sw, x), qx, qw, op.Concat(ax, aw, axis=0)]


def _linear_gradient(op: FunctionOps) -> list[ir.Value]:
    """dx = (q qw') s sw, dw = (qx' q) sx s, where q = round(dy / s); over all rows of x"""
    dy, qx, qw, scales = (op.argument(name) for name in ("dy", "qx", "qw", "scales"))
    sx, sw, s = (op.Gather(scales, np.int64(i)) for i in range(3))
    q, largest = _rounded(op, dy, s, E5M2)
    wide = _float(op, qw)
    inner, outer = (op.Shape(wide, start=i, end=i + 1) for i in range(2))
    dx = op.MatMul(_float(op, q), op.Transpose(wide, perm=[1, 0]))
    rows = op.Reshape(_float(op, qx), op.Concat(np.array([-1]), inner, axis=0))
    given = op.Reshape(_float(op, q), op.Concat(np.array([-1]), outer, axis=0))
    dw = op.MatMul(op.Transpose(rows, perm=[1, 0]), given)
    return [_scaled(op, dx, s, sw, dy), _scaled(op, dw, sx, s, dy), largest]


def _rounded(
    op: FunctionOps, x: ir.Value, scale: ir.Value, dtype: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """x / scale in an 8-bit type, and the largest absolute value of x."""
    wide = _float(op, x)
    divided = op.Div(wide, scale)
    is_finite = op.Less(op.Abs(divided), np.float32(np.inf))
    kept = op.Where(is_finite, divided, np.float32(np.nan))
    largest = op.ReduceMax(op.Reshape(op.Abs(wide), np.array([-1])), keepdims=1)
    return op.Cast(kept, to=int(dtype), saturate=1), largest


def _float(op: FunctionOps, x: ir.Value) -> ir.Value:
    wide: ir.Value = op.Cast(x, to=_FLOAT)
    return wide


def _scaled(op: FunctionOps, y: ir.Value, a: ir.Value, b: ir.Value, like: ir.Value) -> ir.Value:
    scaled: ir.Value = op.CastLike(op.Mul(y, op.Mul(a, b)), like)
    return scaled
