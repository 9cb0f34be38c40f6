"""Quantized operators that onnxruntime's quantizer writes (domain com.microsoft).

A quantized tensor is x = (q - zero_point) * scale. Each operator computes with the real numbers
and quantizes its result; sums of products of bytes are exact enough for that in float32.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Ints, Tensor
from onward.providers.torch.kernels import quantized
from onward.providers.torch.kernels.pool import average_pool

kernel = OpTable()
microsoft = functools.partial(kernel, domain="com.microsoft")


def real(q: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """(q - zero_point) * scale"""
    return _centred(q, zero_point) * scale


def _centred(q: Tensor, zero_point: Tensor | None) -> Tensor:
    """q - zero_point, in float32"""
    return q.float() if zero_point is None else q.float() - zero_point.float()


def _quantized(x: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """saturate(round(x / scale) + zero_point)"""
    q = torch.round(x / scale)
    q = q if zero_point is None else q + zero_point.float()
    limits = torch.iinfo(dtype)
    return q.clamp(limits.min, limits.max).to(dtype)


@microsoft("QuantizeLinear")
def quantize_linear(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1
) -> Tensor:
    """q = saturate(round(x / scale) + zero_point)"""
    return quantized.quantize_linear(
        x,
        scale,
        zero_point,
        axis=axis,
        block_size=0,
        output_dtype=0,
        precision=0,
        saturate=1,
        output_type=0,
    )


@microsoft("DequantizeLinear")
def dequantize_linear(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, axis: int = 1
) -> Tensor:
    """x = (q - zero_point) * scale"""
    return quantized.dequantize_linear(
        x, scale, zero_point, axis=axis, block_size=0, output_dtype=0, output_type=0
    )


# -- elementwise -------------------------------------------------------------------------------


@microsoft("QLinearAdd")
def qlinear_add(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """c = a + b"""
    c = real(a, a_scale, a_zero_point) + real(b, b_scale, b_zero_point)
    return _quantized(c, c_scale, c_zero_point, a.dtype)


@microsoft("QLinearMul")
def qlinear_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """c = a * b"""
    c = real(a, a_scale, a_zero_point) * real(b, b_scale, b_zero_point)
    return _quantized(c, c_scale, c_zero_point, a.dtype)


@microsoft("MulInteger")
def mul_integer(
    a: Tensor, a_zero_point: Tensor | None, b: Tensor, b_zero_point: Tensor | None = None
) -> Tensor:
    """c = (a - a_zero_point) * (b - b_zero_point), as an integer"""
    return (_centred(a, a_zero_point) * _centred(b, b_zero_point)).int()


@microsoft("QLinearSigmoid")
def qlinear_sigmoid(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
) -> Tensor:
    """y = sigmoid(x)"""
    return _quantized(torch.sigmoid(real(x, x_scale, x_zero_point)), y_scale, y_zero_point, x.dtype)


@microsoft("QLinearLeakyRelu")
def qlinear_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    """y = x where x >= 0, else alpha * x"""
    y = F.leaky_relu(real(x, x_scale, x_zero_point), alpha)
    return _quantized(y, y_scale, y_zero_point, x.dtype)


@microsoft("QLinearSoftmax")
def qlinear_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = -1,
    opset: int,
) -> Tensor:
    """y = softmax(x) along an axis, or before opset 13 over all axes from it on"""
    y = real(x, x_scale, x_zero_point)
    y = y.softmax(axis) if opset >= 13 else y.flatten(axis).softmax(-1).view(x.shape)
    return _quantized(y, y_scale, y_zero_point, x.dtype)


@microsoft("QLinearWhere")
def qlinear_where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    """z = x where the condition holds, else y"""
    z = torch.where(condition, real(x, x_scale, x_zero_point), real(y, y_scale, y_zero_point))
    return _quantized(z, z_scale, z_zero_point, x.dtype)


@microsoft("QLinearConcat")
def qlinear_concat(y_scale: Tensor, y_zero_point: Tensor, *xs: Tensor, axis: int) -> Tensor:
    """y = [x, x, ...], each given as (tensor, scale, zero point)"""
    parts = [real(*xs[i : i + 3]) for i in range(0, len(xs), 3)]
    return _quantized(torch.cat(parts, axis), y_scale, y_zero_point, y_zero_point.dtype)


# -- means -------------------------------------------------------------------------------------


@microsoft("QLinearAveragePool")
def qlinear_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """y = the mean of each window of x"""
    y = real(x, x_scale, x_zero_point)
    y = average_pool(
        y.movedim(-1, 1) if channels_last else y,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    y = _quantized(y, y_scale, y_zero_point, x.dtype)
    return y.movedim(1, -1) if channels_last else y


@microsoft("QLinearGlobalAveragePool")
def qlinear_global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    channels_last: int = 0,
) -> Tensor:
    """y = the mean of each channel of x"""
    axes = range(1, x.dim() - 1) if channels_last else range(2, x.dim())
    y = real(x, x_scale, x_zero_point).mean(list(axes), keepdim=True)
    return _quantized(y, y_scale, y_zero_point, x.dtype)


@microsoft("QLinearReduceMean")
def qlinear_reduce_mean(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axes: Ints,
    keepdims: int,
) -> Tensor:
    """y = the mean of x over the axes"""
    y = real(x, x_scale, x_zero_point).mean(axes, keepdim=bool(keepdims))
    return _quantized(y, y_scale, y_zero_point, x.dtype)


# -- matrix products and convolutions ------------------------------------------------------------


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """y = a b + bias"""
    y = torch.matmul(_centred(a, a_zero_point), _centred(b, b_zero_point)) * (a_scale * b_scale)
    return (y if bias is None else y + bias).to(a_scale.dtype)


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """y = a b + bias, a rounded to bytes first"""
    bytes_, scale, zero_point = quantized.dynamic_quantize_linear(a)
    return matmul_integer_to_float(bytes_, b, scale, b_scale, zero_point, b_zero_point, bias)


@microsoft("QGemm")
def qgemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """y = alpha * a b + c, quantized where it has a scale"""
    left, right = _centred(a.t() if transA else a, a_zero_point), b.t() if transB else b
    y = torch.matmul(left, _centred(right, b_zero_point))
    y = (y if c is None else y + c) * (alpha * a_scale * b_scale)
    if y_scale is None:
        return y
    dtype = a.dtype if y_zero_point is None else y_zero_point.dtype
    return _quantized(y, y_scale, y_zero_point, dtype)


@microsoft("QLinearConv")
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
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """y = conv(x, w) + bias, with the channels last or not"""
    y = quantized.qlinear_conv(
        x.movedim(-1, 1) if channels_last else x,
        x_scale,
        x_zero_point,
        w,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return y.movedim(1, -1) if channels_last else y
