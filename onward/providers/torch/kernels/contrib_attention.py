"""The attention operators of onnxruntime (domain com.microsoft).

A padding mask adds a large negative number (`mask_filter_value`) to scores, not -inf: a query whose
keys are all masked attends to all of them. Causal masks are -inf.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

from onward.errors import UnsupportedModel
from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Int, Ints, Tensor
from onward.providers.torch.kernels.attention import (
    attend,
    combine_masks,
    merge_heads,
    repeat_heads,
    rotate,
    split_heads,
    visible_keys,
)
from onward.providers.torch.kernels.half_precision import float32_on_cpu

kernel = OpTable()
microsoft = functools.partial(kernel, domain="com.microsoft")


@microsoft("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Rotate pairs of each head by angles that grow with the position; one id is an offset."""
    length = x.shape[-2]
    if position_ids.dim() == 1:
        position_ids = position_ids + torch.arange(length, device=x.device).unsqueeze(0)
    cos, sin = cos_cache[position_ids], sin_cache[position_ids]  # (batch, length, size / 2)
    if x.dim() == 4:
        return rotate(x, cos.unsqueeze(1), sin.unsqueeze(1), interleaved=bool(interleaved))
    heads = num_heads or x.shape[2] // (2 * cos.shape[-1])
    y = torch.unflatten(x, 2, (heads, -1))
    return rotate(y, cos.unsqueeze(2), sin.unsqueeze(2), interleaved=bool(interleaved)).flatten(2)


@microsoft("Attention")
@float32_on_cpu
def attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Int | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Ints | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, Tensor]:
    """q, k, v = x W + b, then softmax(scale * q k^T + mask) v; and the keys and values"""
    if do_rotary or past_sequence_length is not None:
        raise _unsupported("Attention with do_rotary or a shared buffer")
    qkv = F.linear(x, weights.t(), bias)
    return attend_to_itself(
        qkv,
        mask_index,
        past,
        attention_bias,
        hidden=mask_filter_value,
        heads=num_heads,
        sizes=qkv_hidden_sizes,
        scale=scale,
        causal=bool(unidirectional),
    )


def attend_to_itself(
    qkv: Tensor,
    mask_index: Tensor | None,
    past: Tensor | None,
    attention_bias: Tensor | None = None,
    *,
    hidden: float,
    heads: int,
    sizes: Ints | None = None,
    scale: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Self-attention over concatenated q, k and v; also returns the keys and values."""
    parts = qkv.chunk(3, -1) if sizes is None else qkv.split_with_sizes(sizes, -1)
    q, k, v = [split_heads(part, heads) for part in parts]
    offset = 0
    if past is not None:
        offset = past.shape[3]
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
    mask = _mask(mask_index, q, k, hidden, attention_bias)
    y = _attend(q, k, v, mask, offset if causal else None, scale)
    present = torch.stack((k, v)) if k.shape == v.shape else k
    return merge_heads(y), present


@microsoft("MultiHeadAttention")
@float32_on_cpu
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Int | None = None,
    cache_indirection: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: int,
) -> tuple[Tensor | None, ...]:
    """y = softmax(scale * q k^T + mask) v; and the keys, the values, the masked scores"""
    if past_sequence_length is not None or cache_indirection is not None:
        raise _unsupported("MultiHeadAttention with a shared buffer")
    q, k, v = _unpacked(query, key, value, bias, num_heads)
    offset = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    mask = _mask(key_padding_mask, q, k, mask_filter_value, attention_bias)
    y = _attend(q, k, v, mask, offset if unidirectional else None, scale)
    scores = None
    if outputs > 3:
        seen = _seen(q, k, offset) if unidirectional else None
        scores = _scores(q, k, combine_masks(mask, seen), scale)
    return merge_heads(y), k, v, scores


def _unpacked(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as (batch, heads, length, size), from any of the accepted layouts."""
    if key is None:  # (batch, length, heads, 3, size)
        q, k, v = query.unbind(3)
    elif value is None:  # (batch, length, heads, 2, size)
        q, (k, v) = torch.unflatten(query, 2, (heads, -1)), key.unbind(3)
    else:
        q = torch.unflatten(query, 2, (heads, -1))
        if key.dim() == 4:  # (batch, heads, length, size): from a cache, its bias added already
            q = q if bias is None else q + bias[: query.shape[2]].view(heads, -1)
            return q.transpose(1, 2), key, value
        k, v = torch.unflatten(key, 2, (heads, -1)), torch.unflatten(value, 2, (heads, -1))
    if bias is not None:
        sizes = [part.shape[2] * part.shape[3] for part in (q, k, v)]
        q_bias, k_bias, v_bias = bias.split_with_sizes(sizes)
        q, k = q + q_bias.view(heads, -1), k + k_bias.view(heads, -1)
        v = v + v_bias.view(heads, -1)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _mask(
    mask: Tensor | None, q: Tensor, k: Tensor, hidden: float, attention_bias: Tensor | None
) -> Tensor | None:
    """The mask to add to the scores, from any form of a padding mask and a bias.

    A vector holds the keys' ends, perhaps followed by their starts; a matrix (batch, keys), or
    one of (batch, queries, keys), is 0 where a key is hidden.
    """
    if mask is None:
        return attention_bias
    if mask.dim() == 1:
        batch, j = q.shape[0], torch.arange(k.shape[2], device=q.device)
        seen = j < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            seen = seen & (j >= mask[batch:, None])
    else:
        seen = mask != 0
    if seen.dim() == 4:  # (batch, 1, longest, longest): this step's part of it
        end = k.shape[2]
        seen = seen[:, :, end - q.shape[2] : end, :end]
    else:
        seen = seen[:, None, None, :] if seen.dim() == 2 else seen[:, None]
    added = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, hidden)
    return added if attention_bias is None else added + attention_bias


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: int | None, scale: float | None
) -> Tensor:
    """Fused attention, causal from an offset; None: not causal."""
    if mask is None and offset == 0:
        return attend(q, k, v, causal=True, scale=scale)
    if offset is None or (mask is None and offset + 1 == k.shape[2]):
        return attend(q, k, v, mask, scale=scale)
    return attend(q, k, v, combine_masks(mask, _seen(q, k, offset)), scale=scale)


def _seen(q: Tensor, k: Tensor, offset: int) -> Tensor | None:
    return visible_keys(q.shape[2], k.shape[2], offset, left=None, right=0, device=q.device)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """The scores, scaled and masked: scale * q k^T + mask."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ repeat_heads(k, q.shape[1]).transpose(-1, -2))
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask


@microsoft("GroupQueryAttention")
@float32_on_cpu
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Int,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    outputs: int,
) -> tuple[Tensor | None, ...]:
    """y = softmax(softcap(scale * q k^T) + mask) v, over a cache that the new keys enter.

    A sequence's new tokens follow the seqlens_k + 1 - length tokens that it already has in the
    cache; at the first step it has none, and what is behind its end is padding.
    """
    if sliding_window_cache or k_scale is not None or v_scale is not None:
        raise _unsupported("GroupQueryAttention with a quantized or a sliding cache")
    if key is None or value is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        sizes = [num_heads * size, kv_num_heads * size, kv_num_heads * size]
        query, key, value = query.split_with_sizes(sizes, -1)
    q, k = split_heads(query, num_heads), split_heads(key, kv_num_heads)
    v = split_heads(value, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q = F.rms_norm(q, q.shape[-1:], q_norm_weight, qk_norm_epsilon)
        k = F.rms_norm(k, k.shape[-1:], k_norm_weight, qk_norm_epsilon)

    length, total = q.shape[2], total_sequence_length
    starts = torch.zeros_like(seqlens_k) if length == total else seqlens_k + 1 - length
    places = starts.long().view(-1, 1) + torch.arange(length, device=q.device)  # (batch, length)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        ids = places if position_ids is None else position_ids
        cos, sin = cos_cache[ids].unsqueeze(1), sin_cache[ids].unsqueeze(1)
        q = rotate(q, cos, sin, interleaved=bool(rotary_interleaved))
        k = rotate(k, cos, sin, interleaved=bool(rotary_interleaved))
    keys, values = (
        _write_to_cache(past_key, k, places, total),
        _write_to_cache(past_value, v, places, total),
    )
    k, v = keys[:, :, :total], values[:, :, :total]

    fused = not softcap and head_sink is None and smooth_softmax <= 0 and outputs < 4
    # A sequence alone in its batch, or at its first step, needs only a causal mask.
    needs_no_mask = (
        attention_bias is None and local_window_size <= 0 and (q.shape[0] == 1 or length == total)
    )
    if fused and causal and needs_no_mask and length in (1, total):
        y = attend(q, k, v, causal=length > 1, scale=scale or None)
        return merge_heads(y), keys, values, None
    if causal:
        left = local_window_size - 1 if local_window_size > 0 else None
        at = places[:, :1].view(-1, 1, 1, 1)
        seen = visible_keys(length, total, at, left=left, right=0, device=q.device)
    else:
        seen = torch.arange(total, device=q.device) <= seqlens_k.view(-1, 1, 1, 1)
    mask = combine_masks(attention_bias, seen)
    if fused:
        return merge_heads(attend(q, k, v, mask, scale=scale or None)), keys, values, None
    y, scores = _attend_with_sink(
        q, k, v, mask, scale or None, softcap, head_sink, smooth_softmax > 0, qk_output
    )
    return merge_heads(y), keys, values, scores


def _write_to_cache(past: Tensor | None, x: Tensor, places: Tensor, total: int) -> Tensor:
    """Write new tokens at their positions into a cache of `total` tokens."""
    if past is None:
        return x if x.shape[2] == total else F.pad(x, (0, 0, 0, total - x.shape[2]))
    at, more = places[:, None, :, None].expand_as(x), total - past.shape[2]
    if more > 0:
        return F.pad(past, (0, 0, 0, more)).scatter_(2, at, x)  # padded, it is a copy already
    return past.scatter(2, at, x)


def _attend_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    softcap: float,
    sink: Tensor | None,
    smooth: bool,
    qk_output: int,
) -> tuple[Tensor, Tensor]:
    """Attention by separate operators; a sink is the score of one more key, whose value is 0."""
    scores = _scores(q, k, None, scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        added = mask.dtype != torch.bool
        scores = scores + mask if added else scores.masked_fill(~mask, -math.inf)
    p = scores
    if sink is not None or smooth:
        more = scores.new_zeros(q.shape[1]) if sink is None else sink.to(scores.dtype)
        p = torch.cat((scores, more.view(1, -1, 1, 1).expand(*q.shape[:3], 1)), -1)
    p = p.softmax(-1)[..., : k.shape[2]]
    return p @ repeat_heads(v, q.shape[1]), p if qk_output == 2 else scores


def _unsupported(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"no torch kernel for com.microsoft::{what}\n"
        "list CPUExecutionProvider or CUDAExecutionProvider before TorchExecutionProvider"
    )
