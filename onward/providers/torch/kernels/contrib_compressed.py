"""onnxruntime's operators (domain com.microsoft) with quantized weights and float inputs."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.contrib import embed_layer_normalization
from onward.providers.torch.kernels.contrib_attention import attend_to_itself
from onward.providers.torch.kernels.contrib_quantized import matmul_integer_to_float, real
from onward.providers.torch.kernels.half_precision import float32_on_cpu
from onward.providers.torch.kernels.recurrent import lstm

kernel = OpTable()
microsoft = functools.partial(kernel, domain="com.microsoft")


def _unpacked(x: Tensor, bits: int) -> Tensor:
    """Unpack numbers from bytes along the last axis, low bits first."""
    if bits == 8:
        return x
    fields = [(x >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(fields, dim=-1).flatten(-2)


@microsoft("MatMulNBits")
@float32_on_cpu
def matmul_nbits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """y = a w^T + bias, w = (b - zero_point) * scale, one of each for every block of K"""
    q = _unpacked(b.view(N, -1), bits)  # (N, blocks * block_size)
    scales = scales.view(N, -1)  # (N, blocks)
    if zero_points is None:
        zeros = None
    elif zero_points.dtype == torch.uint8:
        zeros = _unpacked(zero_points.view(N, -1), bits)[:, : scales.shape[1]]
    else:
        zeros = zero_points.view(N, -1)
    if g_idx is not None:  # g_idx: the block of each k
        q, scales = q[:, :K], scales[:, g_idx[:K]]
        zeros = None if zeros is None else zeros[:, g_idx[:K]]
    else:
        q, scales = q.view(N, -1, block_size), scales.unsqueeze(-1)
        zeros = None if zeros is None else zeros.unsqueeze(-1)
    w = q.to(a.dtype) - (2 ** (bits - 1) if zeros is None else zeros.to(a.dtype))
    w = (w * scales).view(N, -1)[:, :K]
    return F.linear(a, w, bias)


@microsoft("GatherBlockQuantized")
def gather_block_quantized(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """Gather of (data - zero_point) * scale, one of each for every block of an axis"""
    gather_axis, axis = gather_axis % data.dim(), quantize_axis % data.dim()
    tensors = [data, scales] if zero_points is None else [data, scales, zero_points]
    if gather_axis == axis:
        y = _real_blocks(tensors, axis, bits, block_size, scales.shape[axis])
        y = _picked(y, indices, gather_axis)
    else:
        few = [_picked(x, indices, gather_axis) for x in tensors]
        y = _real_blocks(few, axis, bits, block_size, scales.shape[axis])
    return (
        torch.unflatten(y, gather_axis, indices.shape) if indices.dim() else y.squeeze(gather_axis)
    )


def _picked(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    rows = indices.reshape(-1)
    return x.index_select(axis, torch.where(rows < 0, rows + x.shape[axis], rows))


def _real_blocks(
    tensors: list[Tensor], axis: int, bits: int, block_size: int, blocks: int
) -> Tensor:
    """(data - zero_point) * scale; a byte of data holds one number or several, by their count."""
    data, scales, *zeros = tensors
    packed = data.dtype == torch.uint8 and bits < 8
    if packed and -(-data.shape[axis] * 8 // bits // block_size) == blocks:
        data, zeros = _unpacked(data, bits), [_unpacked(z, bits) for z in zeros]
    else:
        packed = False
    block_size = block_size or data.shape[axis]

    def stretched(x: Tensor) -> Tensor:
        return x.repeat_interleave(block_size, axis).narrow(axis, 0, data.shape[axis])

    y = data.to(scales.dtype)
    if zeros:
        y = y - stretched(zeros[0].narrow(axis, 0, blocks).to(scales.dtype))
    elif packed or (data.dtype == torch.uint8 and bits == 8):
        y = y - 2 ** (bits - 1)
    return y * stretched(scales)


# -- layers whose weights are bytes ------------------------------------------------------------


@microsoft("QAttention")
def qattention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    x_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, Tensor]:
    """q, k, v = x W + b of bytes, then softmax(scale * q k^T + mask) v; the keys and values"""
    qkv = matmul_integer_to_float(
        x, weight, x_scale, weight_scale, x_zero_point, weight_zero_point, bias
    )
    return attend_to_itself(
        qkv,
        mask_index,
        past,
        hidden=mask_filter_value,
        heads=num_heads,
        scale=scale,
        causal=bool(unidirectional),
    )


@microsoft("QEmbedLayerNormalization")
def qembed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word: Tensor,
    position: Tensor,
    segment: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_scale: Tensor,
    position_scale: Tensor,
    segment_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_zero_point: Tensor,
    position_zero_point: Tensor,
    segment_zero_point: Tensor | None,
    gamma_zero_point: Tensor,
    beta_zero_point: Tensor,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor]:
    """y = layer_norm(word + position + segment), of bytes; and the words in each mask"""
    if segment is not None and segment_scale is not None:
        segment = real(segment, segment_scale, segment_zero_point)
    y, words, _ = embed_layer_normalization(
        input_ids,
        segment_ids,
        real(word, word_scale, word_zero_point),
        real(position, position_scale, position_zero_point),
        segment,
        real(gamma, gamma_scale, gamma_zero_point),
        real(beta, beta_scale, beta_zero_point),
        mask,
        epsilon=epsilon,
    )
    return y, words


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero_point: Tensor,
    r_scale: Tensor,
    r_zero_point: Tensor,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    """LSTM with weights of bytes, (directions, inputs, gates), and float inputs"""
    w, r = (
        real(q, scale.view(scale.shape[0], 1, -1), zero_point.view(scale.shape[0], 1, -1)).mT
        for q, scale, zero_point in ((w, w_scale, w_zero_point), (r, r_scale, r_zero_point))
    )
    return lstm(
        x,
        w,
        r,
        b,
        sequence_lens,
        initial_h,
        initial_c,
        p,
        activation_alpha=activation_alpha,
        activation_beta=activation_beta,
        activations=activations,
        clip=clip,
        direction=direction,
        hidden_size=hidden_size,
        input_forget=input_forget,
        layout=0,
    )
