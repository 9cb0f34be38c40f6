"""Fused operators of onnxruntime's optimizer (domain com.microsoft), except attention.

ONNX has no schemas of them: their default attributes are given here.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Ints, Tensor
from onward.providers.torch.kernels.conv import conv
from onward.providers.torch.kernels.half_precision import float32_on_cpu
from onward.providers.torch.kernels.linear import gemm

kernel = OpTable()
microsoft = functools.partial(kernel, domain="com.microsoft")


# -- activations -------------------------------------------------------------------------------


@microsoft("Gelu")
def gelu(x: Tensor) -> Tensor:
    """y = x * Phi(x), the normal distribution's Phi"""
    return F.gelu(x)


@microsoft("BiasGelu")
def bias_gelu(a: Tensor, b: Tensor) -> Tensor:
    """y = gelu(a + b)"""
    return F.gelu(a + b)


@microsoft("FastGelu")
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = gelu(x + bias), by its tanh approximation"""
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@microsoft("QuickGelu")
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """y = x * sigmoid(alpha * x)"""
    return x * torch.sigmoid(alpha * x)


@microsoft("BiasSplitGelu")
def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """y = left * gelu(right), the halves of x + bias"""
    left, right = (x + bias).chunk(2, dim=-1)
    return left * F.gelu(right)


@microsoft("BiasAdd")
def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """y = x + bias + skip"""
    return x + bias + skip


@microsoft("BiasSoftmax")
def bias_softmax(x: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    """y = softmax(x + bias) over all axes from `axis` on"""
    y = x + bias
    return y.flatten(axis).softmax(-1).view(y.shape)


def _activated(y: Tensor, name: str | None, params: list[float]) -> Tensor:
    """Apply the activation of a fused node, with its parameters in the operator's order."""
    if not name:
        return y
    if name == "HardSigmoid":
        alpha, beta = params or (0.2, 0.5)
        return (alpha * y + beta).clamp(0, 1)
    if name == "Clip":
        return y.clamp(*params)
    if name == "LeakyRelu":
        return F.leaky_relu(y, params[0] if params else 0.01)
    plain = {"Relu": torch.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid}
    return plain[name](y)


# -- normalisations ----------------------------------------------------------------------------


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y = layer_norm(x + skip + bias) * gamma + beta; and mean, 1 / deviation, the sum"""
    s = x + skip if bias is None else x + skip + bias
    y, mean, inverse = torch.native_layer_norm(s, s.shape[-1:], gamma, beta, epsilon)
    return y, mean.float(), inverse.float(), s


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: int,
) -> tuple[Tensor | None, ...]:
    """y = rms_norm(x + skip + bias) * gamma; and nothing, 1 / rms, the sum"""
    s = x + skip if bias is None else x + skip + bias
    y = F.rms_norm(s, s.shape[-1:], gamma, epsilon)
    return y, None, _inverse_rms(s, [-1], epsilon) if outputs > 2 else None, s


@kernel("SimplifiedLayerNormalization")
@microsoft("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int,
) -> tuple[Tensor | None, ...]:
    """y = x / rms(x) * scale from `axis` on; and 1 / rms"""
    shape = x.shape[axis:]
    if scale.dtype == x.dtype and scale.shape == shape:
        y = F.rms_norm(x, shape, scale, epsilon)
    else:
        y = (F.rms_norm(x, shape, None, epsilon) * scale).to(scale.dtype)
    axes = list(range(-len(shape), 0))
    return y, _inverse_rms(x, axes, epsilon) if outputs > 1 else None


def _inverse_rms(x: Tensor, axes: Ints, epsilon: float) -> Tensor:
    return torch.rsqrt(x.float().square().mean(axes, keepdim=True) + epsilon)


@microsoft("GroupNorm")
def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    """y = group_norm(x) * gamma + beta, then SiLU where activation is 1"""
    x = x.movedim(-1, 1) if channels_last else x
    y = F.group_norm(x, groups, gamma.to(x.dtype), beta.to(x.dtype), epsilon)
    y = F.silu(y) if activation else y
    return y.movedim(1, -1) if channels_last else y


@microsoft("SkipGroupNorm")
def skip_group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """y = group_norm(x + skip + bias) * gamma + beta, then SiLU; and the sum"""
    if skip.dim() == 2:
        skip = skip[:, None, None, :] if channels_last else skip[:, :, None, None]
    s = x + skip
    if bias is not None:
        s = s + (bias if channels_last else bias[:, None, None])
    y = group_norm(
        s,
        gamma,
        beta,
        activation=activation,
        channels_last=channels_last,
        epsilon=epsilon,
        groups=groups,
    )
    return y, s


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y = layer_norm(word + position + segment); and the words in each mask, the sum"""
    positions = position_embedding[: input_ids.shape[1]]
    if position_ids is not None:
        positions = F.embedding(position_ids, position_embedding)
    s = F.embedding(input_ids, word_embedding) + positions
    if segment_ids is not None and segment_embedding is not None:
        s = s + F.embedding(segment_ids, segment_embedding)
    if mask is None:
        words = input_ids.new_zeros(input_ids.shape[0])
    else:
        words = (mask == 1).sum(1, dtype=torch.int32)
    return F.layer_norm(s, s.shape[-1:], gamma, beta, epsilon), words, s


# -- matrix products and convolutions ----------------------------------------------------------


@microsoft("FusedMatMul", "TransposeMatMul")
@float32_on_cpu
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """y = alpha * a b; each transposed in its last two axes, or with its first axis moved"""
    y = torch.matmul(_transposed(a, transA, transBatchA), _transposed(b, transB, transBatchB))
    return y if alpha == 1 else alpha * y


def _transposed(x: Tensor, transpose: int, batch: int) -> Tensor:
    if batch:
        x = x.movedim(0, -2)
    return x.mT if transpose and x.dim() > 1 else x


@microsoft("FusedMatMulActivation")
def fused_matmul_activation(
    a: Tensor,
    b: Tensor,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """y = activation(alpha * a b)"""
    y = fused_matmul(
        a,
        b,
        alpha=alpha,
        transA=transA,
        transB=transB,
        transBatchA=transBatchA,
        transBatchB=transBatchB,
    )
    if activation == "Softmax":
        return y.softmax(-1 if activation_axis is None else activation_axis)
    params = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return _activated(y, activation, params)


@microsoft("FusedGemm")
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """y = activation(alpha * a b + beta * c)"""
    y = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    params = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
    return _activated(y, activation, params)


@microsoft("GemmFastGelu")
@float32_on_cpu
def gemm_fast_gelu(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = gelu(x w + bias), by its tanh approximation"""
    return fast_gelu(torch.matmul(x, w), bias)


@microsoft("FusedConv")
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """y = activation(conv(x, w) + b + z)"""
    y = conv(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _activated(y if z is None else y + z, activation, activation_params or [])


@microsoft("NhwcFusedConv", "NhwcConv")
def nhwc_fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """FusedConv with the channels last, which torch holds as strides"""
    y = fused_conv(
        x.movedim(-1, 1),
        w,
        b,
        None if z is None else z.movedim(-1, 1),
        activation=activation,
        activation_params=activation_params,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return y.movedim(1, -1)
