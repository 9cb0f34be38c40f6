"""Quantization, and the operators that compute with quantized tensors.

Products of 8-bit integers are summed in floats wide enough to hold them exactly: torch's float
kernels are the fast ones, and their result is the integer one.
"""

from __future__ import annotations

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import DTYPES, Ints, Tensor, torch_dtype
from onward.providers.torch.kernels.cast import FLOAT8, SMALL_FLOATS, SMALL_INTEGERS, convert
from onward.providers.torch.kernels.conv import conv

kernel = OpTable()

_UINT8 = 2
# float32 holds sums of this many products of 8-bit integers: 256 * 255 * 255 < 2^24
_EXACT_IN_FLOAT32 = 256


# -- one tensor ------------------------------------------------------------------------------


@kernel("QuantizeLinear")
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: int,
    precision: int,
    saturate: int,
    output_type: int,
) -> Tensor:
    """saturate(round(x / scale) + zero_point)"""
    to = output_dtype or output_type or _onnx_type(zero_point)
    dtype = torch_dtype(precision) if precision else _precision(x, scale)
    y = x.to(dtype) / _stretched(scale.to(dtype), x, axis, block_size)
    if zero_point is not None:
        zero_point = _stretched(zero_point.float(), x, axis, block_size)
    return _quantized(y, zero_point, to, saturate=bool(saturate))


def _precision(x: Tensor, scale: Tensor) -> torch.dtype:
    """The type of the division: the scale's, if torch computes with it."""
    if not scale.is_floating_point():
        return torch.float64
    if scale.dtype != torch.float8_e8m0fnu:
        return scale.dtype
    return x.dtype if x.is_floating_point() else torch.float32


def _onnx_type(zero_point: Tensor | None) -> int:
    if zero_point is None:
        return _UINT8
    return next(number for number, dtype in DTYPES.items() if dtype == zero_point.dtype)


def _stretched(scale: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point per tensor, per slice of `axis` or per block, broadcastable to x."""
    if scale.ndim == 0 or x.ndim == 0:
        return scale.reshape(())
    if block_size and scale.ndim == x.ndim:
        return scale.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    if x.ndim == 1:
        return scale
    shape = [1] * x.ndim
    shape[axis] = -1
    return scale.reshape(shape)


def _quantized(x: Tensor, zero_point: Tensor | None, to: int, *, saturate: bool = True) -> Tensor:
    """saturate(round(x) + zero_point) in an ONNX type; a float type rounds by itself."""
    x = x.float() if x.dtype.itemsize < 4 else x  # float16 cannot count to 65535
    if to in FLOAT8 or to in SMALL_FLOATS:
        return convert(x if zero_point is None else x + zero_point, to, saturate=saturate)
    x = torch.round(x)
    x = x if zero_point is None else x + zero_point
    return x.clamp(*_limits(to)).to(torch_dtype(to))


def _limits(onnx_type: int) -> tuple[int, int]:
    if onnx_type in SMALL_INTEGERS:
        return SMALL_INTEGERS[onnx_type]
    info = torch.iinfo(torch_dtype(onnx_type))
    return info.min, info.max


@kernel("DequantizeLinear")
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: int,
    output_type: int,
) -> Tensor:
    """(x - zero_point) * scale"""
    dtype = torch_dtype(output_dtype) if output_dtype else scale.dtype
    if dtype == torch.float8_e8m0fnu:
        dtype = torch_dtype(output_type)
    # a byte, and its product with a scale of the output's type, are exact in that type
    work = dtype if x.dtype.itemsize == 1 and scale.dtype == dtype else torch.float32
    y = x.to(work)
    if zero_point is not None:
        y = y - _stretched(zero_point.to(work), x, axis, block_size)
    return (y * _stretched(scale.to(work), x, axis, block_size)).to(dtype)


@kernel("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """scale = (max(x, 0) - min(x, 0)) / 255; zero_point = -min(x, 0) / scale, rounded."""
    low, high = torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = torch.where(high == low, 1.0, (high - low) / 255)
    zero_point = torch.round((-low / scale).clamp(0, 255))
    return _quantized(x / scale, zero_point, _UINT8), scale, zero_point.to(torch.uint8)


# -- matrix products -------------------------------------------------------------------------


@kernel("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """(a - a_zero_point) (b - b_zero_point)"""
    return _to_int32(_exact_product(a, b, a_zero_point, b_zero_point))


@kernel("QLinearMatMul")
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """saturate(round(a b * a_scale * b_scale / y_scale) + y_zero_point), a and b dequantized"""
    product = _exact_product(a, b, a_zero_point, b_zero_point)
    scale = _per_row(a_scale).float() * b_scale.float() / y_scale.float()
    return _quantized(product * scale, y_zero_point.float(), _onnx_type(y_zero_point))


def _exact_product(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None, b_zero_point: Tensor | None
) -> Tensor:
    dtype = torch.float32 if a.shape[-1] <= _EXACT_IN_FLOAT32 else torch.float64
    a, b = a.to(dtype), b.to(dtype)
    if a_zero_point is not None:
        a = a - _per_row(a_zero_point).to(dtype)
    if b_zero_point is not None:
        b = b - b_zero_point.to(dtype)
    return torch.matmul(a, b)


def _per_row(x: Tensor) -> Tensor:
    """A vector holds one number a row, as a column then."""
    return x.unsqueeze(1) if x.ndim == 1 and x.shape[0] != 1 else x


def _to_int32(x: Tensor) -> Tensor:
    return x.to(torch.int64).to(torch.int32)  # by way of int64, a sum too large wraps


# -- convolutions ----------------------------------------------------------------------------


@kernel("ConvInteger")
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """(x - x_zero_point) * (w - w_zero_point), convolved"""
    y = conv(
        _centred(x, x_zero_point),
        _centred(w, w_zero_point),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _to_int32(torch.round(y))


@kernel("QLinearConv")
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """saturate(round((x * w + bias) * x_scale * w_scale / y_scale) + y_zero_point)"""
    y = conv(
        _centred(x, x_zero_point),
        _centred(w, w_zero_point),
        None if bias is None else bias.double(),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    scale = x_scale * _per_channel(w_scale, y.ndim - 1) / y_scale
    return _quantized(torch.round(y) * scale, y_zero_point.float(), _onnx_type(y_zero_point))


def _centred(x: Tensor, zero_point: Tensor | None) -> Tensor:
    """x - zero_point in float64: float32 convolutions take short cuts that round (Winograd)."""
    if zero_point is None:
        return x.double()
    return x.double() - _per_channel(zero_point, x.ndim).double()


def _per_channel(x: Tensor, ndim: int) -> Tensor:
    """A vector over the first of `ndim` axes (a weight's, or a batch's element's); or a scalar."""
    return x.reshape(-1, *[1] * (ndim - 1)) if x.ndim else x
