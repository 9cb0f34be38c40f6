"""Translations of functions of one element to ONNX, with the gradients of torch at special points.

What torch decomposes them into has the right results, but NaN or another gradient at bounds, at
zeros and where a branch that was not taken is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from onward.gradients.clip_bounds import stop_at_bounds
from onward.pytorch.stopped_gradients import stop_gradient
from onward.pytorch.typed_numbers import number

op: Any = opset18
_aten = torch.ops.aten


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """min(max(x, low), high), without a gradient at the bounds, unlike clamp"""
    y = op.Clip(x, number(min_val, x), number(max_val, x))
    stop_at_bounds(y.producer())
    return y


def _relu6(x: Any) -> Any:
    return _hardtanh(x, 0.0, 6.0)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """min(max(x, low), high); at a bound, the gradient is that of x"""
    bounds = [None if bound is None else _bound(bound, x) for bound in (low, high)]
    if all(bound is None or not len(getattr(bound, "shape", ())) for bound in (low, high)):
        if x.dtype.is_floating_point():  # Clip's default bounds are the largest finite numbers
            ends = (-math.inf, math.inf)
            bounds = [number(e, x) if b is None else b for b, e in zip(bounds, ends)]
        return op.Clip(x, *bounds)
    for bound, is_outside in zip(bounds, (op.Less, op.Greater)):
        x = x if bound is None else op.Where(is_outside(x, bound), bound, x)
    return x


def _bound(bound: Any, x: Any) -> Any:
    is_number = isinstance(bound, (int, float)) and x.dtype.is_floating_point()
    return number(bound, x) if is_number else op.CastLike(bound, x)


def _clamp_max(x: Any, high: Any) -> Any:
    return _clamp(x, None, high)


def _sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), 1 at 0"""
    if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):  # pi x is not precise
        return op.CastLike(_sinc_of(op.Cast(x, to=1)), x)
    return _sinc_of(x)


def _sinc_of(x: Any) -> Any:
    zero, one = number(0.0, x), number(1.0, x)
    is_zero = op.Equal(x, zero)
    angle = op.Mul(op.Where(is_zero, one, x), number(math.pi, x))
    return op.Where(is_zero, one, op.Div(op.Sin(angle), angle))


def _logit(x: Any, eps: float | None = None) -> Any:
    """log(x) - log(1 - x), of x clamped to eps .. 1 - eps"""
    one = number(1.0, x)
    if eps is not None:
        x = op.Clip(x, number(eps, x), number(1.0 - eps, x))
    return op.Sub(op.Log(x), op.Log(op.Sub(one, x)))


def _log_sigmoid(x: Any) -> Any:
    """-softplus(-x): the logarithm of a sigmoid is -inf below -20"""
    return op.Neg(op.Softplus(op.Neg(x)))


def log_add_exp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)) = max(x, y) + softplus(-|x - y|)"""
    distance = op.Where(op.Equal(x, y), number(0.0, x), op.Abs(op.Sub(x, y)))
    return op.Add(op.Max(x, y), op.Softplus(op.Neg(distance)))


def _log_add_exp2(x: Any, y: Any) -> Any:
    """log2(2^x + 2^y)"""
    scale = number(math.log(2.0), x)
    return op.Div(log_add_exp(op.Mul(x, scale), op.Mul(y, scale)), scale)


def _copysign(x: Any, y: Any) -> Any:
    """|x| with the sign of y, also of a zero"""
    y = op.CastLike(y, x)
    zero = number(0.0, x)
    is_negative = op.Or(op.Less(y, zero), op.Less(op.Reciprocal(y), zero))
    size = op.Abs(x)
    return op.Where(is_negative, op.Neg(size), size)


def _xlogy(x: Any, y: Any) -> Any:
    """x log(y), 0 where x = 0 and log(y) is not finite; dx = dz log(y), dy = dz x / y"""
    zero = number(0.0, x)
    is_pole = op.Or(op.LessOrEqual(y, number(0.0, y)), op.IsInf(y))
    skips = op.And(op.Equal(x, zero), is_pole)
    return op.Mul(x, op.Log(op.Where(skips, number(1.0, y), y)))


def _atan2(y: Any, x: Any) -> Any:
    """The angle of (x, y): atan(y / x), or pi / 2 - atan(x / y), plus a half turn where x < 0"""
    zero, one = number(0.0, x), number(1.0, x)
    both_infinite = op.And(op.IsInf(x), op.IsInf(y))
    x, y = (op.Where(both_infinite, op.Sign(each), each) for each in (x, y))
    no_angle = op.And(op.Equal(x, zero), op.Equal(y, zero))
    is_steep = op.Greater(op.Abs(y), op.Abs(x))
    over, under = op.Where(is_steep, x, y), op.Where(is_steep, y, x)
    slope = op.Div(op.Where(no_angle, zero, over), op.Where(no_angle, one, under))
    angle = op.Atan(slope)
    is_negative = op.Less(y, zero)
    quarter = op.Where(is_negative, number(-math.pi / 2, x), number(math.pi / 2, x))
    half = op.Where(is_negative, number(-math.pi, x), number(math.pi, x))
    turn = op.Where(op.Less(x, zero), half, zero)
    return op.Where(is_steep, op.Sub(quarter, angle), op.Add(turn, angle))


def _fmax(x: Any, y: Any) -> Any:
    """The larger one, or the one that is a number; among equals, x has the gradient"""
    return op.Where(op.Or(op.GreaterOrEqual(x, y), op.IsNaN(y)), x, y)


def _fmin(x: Any, y: Any) -> Any:
    """The smaller one, or the one that is a number; among equals, x has the gradient"""
    return op.Where(op.Or(op.LessOrEqual(x, y), op.IsNaN(y)), x, y)


def _hypot(x: Any, y: Any) -> Any:
    """sqrt(x^2 + y^2), computed in units of the larger one: squares may overflow"""
    larger = stop_gradient(op.Max(op.Abs(x), op.Abs(y)))
    one = number(1.0, x)
    is_unit = op.Or(op.Equal(larger, number(0.0, x)), op.IsInf(larger))
    unit = op.Where(is_unit, one, larger)
    a, b = op.Div(x, unit), op.Div(y, unit)
    return op.Mul(op.Sqrt(op.Add(op.Mul(a, a), op.Mul(b, b))), unit)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten.atan2.default: _atan2,
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp,
    _aten.clamp_max.default: _clamp_max,
    _aten.clamp_max.Tensor: _clamp_max,
    _aten.clamp_min.default: _clamp,
    _aten.clamp_min.Tensor: _clamp,
    _aten.copysign.Scalar: _copysign,
    _aten.copysign.Tensor: _copysign,
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.hardtanh.default: _hardtanh,
    _aten.hypot.default: _hypot,
    _aten.log_sigmoid.default: _log_sigmoid,
    _aten.log_sigmoid_forward.default: lambda x: (_log_sigmoid(x), op.Identity(x)),
    _aten.logaddexp.default: log_add_exp,
    _aten.logaddexp2.default: _log_add_exp2,
    _aten.logit.default: _logit,
    _aten.relu6.default: _relu6,
    _aten.sinc.default: _sinc,
    _aten.xlogy.Tensor: _xlogy,
}
