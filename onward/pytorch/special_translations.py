"""Translations of special functions to ONNX, which lacks them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from onward.pytorch.fallback import CannotCapture
from onward.pytorch.stopped_gradients import stop_gradient

op: Any = opset18
_aten = torch.ops.aten

_SHIFT = 6  # Stirling's series is precise to 32 bits from here
_GAMMA_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)  # of 1 / x, 1 / x^3, ...
_DIGAMMA_SERIES = (-1 / 12, 1 / 120, -1 / 252, 1 / 240)  # of 1 / x^2, 1 / x^4, ...
# Giles, "Approximating the erfinv function": polynomials in w = -log(1 - x^2)
_ERFINV_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def _of_32_bits(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """A translation that computes in 32 bits."""

    def translate(x: Any) -> Any:
        if x.dtype == ir.DataType.DOUBLE:
            raise CannotCapture(f"torch.{name} in float64 has no ONNX operators of its precision")
        if x.dtype == ir.DataType.FLOAT:
            return function(x)
        y = function(op.Cast(x, to=1))
        return op.CastLike(y, x) if x.dtype.is_floating_point() else y

    return translate


def _polynomial(x: Any, factors: Sequence[float]) -> Any:
    """Horner's scheme, the highest power first"""
    y: Any = factors[0]
    for factor in factors[1:]:
        y = op.Add(op.Mul(y, x), factor)
    return y


def _reflected(x: Any) -> tuple[Any, Any]:
    """Whether x < 1/2, and 1 - x there, else x"""
    is_left = op.Less(x, 0.5)
    return is_left, op.Where(is_left, op.Sub(1.0, x), x)


def _lgamma(x: Any) -> Any:
    """Stirling's series at x + 6; log(pi / |sin(pi x)|) - lgamma(1 - x) on the left"""
    is_left, right = _reflected(x)
    is_large = op.Greater(right, 1e4)  # a product of factors may overflow
    small = op.Where(is_large, 1.0, right)
    factors = small
    for i in range(1, _SHIFT):
        factors = op.Mul(factors, op.Add(small, float(i)))
    near = op.Sub(_stirling(op.Add(small, float(_SHIFT))), op.Log(factors))
    is_infinite = op.IsInf(right)
    far = _stirling(op.Where(op.And(is_large, op.Not(is_infinite)), right, 1.0))
    y = op.Where(is_infinite, right, op.Where(is_large, far, near))
    turn = op.Sub(x, stop_gradient(op.Round(x)))  # in [-1/2, 1/2]: pi x is not precise far from 0
    sine = op.Abs(op.Sin(op.Mul(op.Where(is_left, turn, 0.5), math.pi)))
    left = op.Sub(op.Sub(math.log(math.pi), op.Log(sine)), y)
    return op.Where(op.IsInf(x), math.inf, op.Where(is_left, left, y))


def _stirling(x: Any) -> Any:
    """lgamma of a large x: (x - 1/2) log(x) - x + log(2 pi) / 2, and a series"""
    inverse = op.Reciprocal(x)
    series = op.Mul(_polynomial(op.Mul(inverse, inverse), _GAMMA_SERIES[::-1]), inverse)
    main = op.Sub(op.Mul(op.Sub(x, 0.5), op.Log(x)), x)
    return op.Add(op.Add(main, 0.5 * math.log(2 * math.pi)), series)


def _digamma(x: Any) -> Any:
    """The slope of lgamma: the series at x + 6; digamma(1 - x) - pi / tan(pi x) on the left"""
    is_left, right = _reflected(x)
    shifted = op.Add(right, float(_SHIFT))
    inverse = op.Reciprocal(shifted)
    square = op.Mul(inverse, inverse)
    series = op.Mul(_polynomial(square, _DIGAMMA_SERIES[::-1]), square)
    y = op.Add(op.Sub(op.Log(shifted), op.Mul(inverse, 0.5)), series)
    for i in range(_SHIFT):
        y = op.Sub(y, op.Reciprocal(op.Add(right, float(i))))
    turn = op.Sub(x, stop_gradient(op.Round(x)))  # in [-1/2, 1/2]
    turn = op.Where(is_left, turn, 0.25)
    is_pole = op.And(op.Equal(turn, 0.0), op.Less(x, 0.0))
    angle = op.Mul(op.Where(is_pole, math.nan, turn), math.pi)
    left = op.Sub(y, op.Div(op.Mul(op.Cos(angle), math.pi), op.Sin(angle)))
    return op.Where(is_left, left, y)


def _erfinv(x: Any) -> Any:
    """y with erf(y) = x, of 24 bits; dx = dy sqrt(pi) / 2 exp(y^2)"""
    known = stop_gradient(x)
    is_inside = op.Less(op.Abs(known), 1.0)
    at = op.Where(is_inside, known, 0.0)
    w = op.Neg(op.Log(op.Mul(op.Sub(1.0, at), op.Add(1.0, at))))
    is_tail = op.GreaterOrEqual(w, 5.0)
    centre = _polynomial(op.Sub(w, 2.5), _ERFINV_CENTRE)
    tail = _polynomial(op.Sub(op.Sqrt(w), 3.0), _ERFINV_TAIL)
    y = op.Mul(op.Where(is_tail, tail, centre), at)
    slope = op.Mul(op.Exp(op.Mul(y, y)), math.sqrt(math.pi) / 2)
    y = op.Add(y, op.Mul(op.Sub(x, known), slope))
    end = op.Where(op.Equal(op.Abs(known), 1.0), math.inf, math.nan)
    return op.Where(is_inside, y, op.Mul(op.Where(is_inside, 1.0, end), x))


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _aten.digamma.default: _of_32_bits(_digamma, "digamma"),
    _aten.erfinv.default: _of_32_bits(_erfinv, "erfinv"),
    _aten.lgamma.default: _of_32_bits(_lgamma, "lgamma"),
}
