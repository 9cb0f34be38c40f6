"""Attention kernels: softmax attention, linear attention, rotary embeddings.

torch's fused kernel is used where it can be (flash attention on CUDA), and the explicit form for
the rest: a softcap, a subgraph, scores as an output.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Branch, Tensor, torch_dtype
from onward.providers.torch.kernels.empty_tensors import empty_from
from onward.providers.torch.kernels.half_precision import float32_on_cpu

kernel = OpTable()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * size) -> (batch, heads, length, size)."""
    return torch.unflatten(x, 2, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, size) -> (batch, length, heads * size)."""
    return x.transpose(1, 2).flatten(2)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat each key or value head for the group of query heads that reads it."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Fused softmax(scale * q k^T + mask) v; a fully masked row is zero."""
    heads, length, shared = q.shape[1], q.shape[2], q.shape[1] != k.shape[1]
    if mask is not None and mask.dtype == torch.bool and mask.is_cuda:
        # cuDNN's kernel gives the mean of v in rows that a boolean mask hides completely
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    if shared and mask is not None:
        # The kernels that share heads take no mask. The heads of a single query can be moved to
        # its length axis; else keys and values are repeated.
        shared = False
        if q.shape[2] == 1 and mask.shape[1] == 1:
            q = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
        else:
            k, v = repeat_heads(k, heads), repeat_heads(v, heads)
    y = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=shared
    )
    return y.reshape(y.shape[0], heads, length, y.shape[3])


def visible_keys(
    queries: int,
    keys: int,
    offset: int | Tensor,
    *,
    left: int | None,
    right: int | None,
    device: torch.device,
) -> Tensor | None:
    """Which keys a query may attend to: p - left <= j <= p + right at its position p = i + offset.

    None is unbounded, on a side or as the answer. An offset per batch is (batch, 1, 1, 1).
    """
    j = torch.arange(keys, device=device)
    p = torch.arange(queries, device=device).unsqueeze(1) + offset
    seen = None if left is None else j >= p - left
    return seen if right is None else combine_masks(seen, j <= p + right)


def combine_masks(mask: Tensor | None, seen: Tensor | None) -> Tensor | None:
    """A mask (boolean, or added to the scores) that also hides keys that are not in `seen`."""
    if mask is None or seen is None:
        return seen if mask is None else mask
    if mask.dtype == torch.bool:
        return mask & seen
    return torch.where(seen, mask, -math.inf)


@kernel("Attention")
@float32_on_cpu
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,  # not before opset 25
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float,
    softmax_precision: int | None = None,
    outputs: int,
) -> tuple[Tensor | None, ...]:
    """y = softmax(softcap(scale * q k^T) + mask) v"""
    flat = q.dim() == 3
    if flat:
        assert q_num_heads is not None and kv_num_heads is not None
        q = split_heads(q, q_num_heads)
        k, v = split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    offset: int | Tensor = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    elif nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.view(-1, 1, 1, 1) - q.shape[2]

    mask = full_mask(attn_mask, k.shape[2], q.dtype)
    left = left_window_size if left_window_size >= 0 else None
    right = 0 if is_causal else right_window_size if right_window_size >= 0 else None
    causal = False
    if mask is None and left is None and right == 0 and isinstance(offset, int):
        causal = offset == 0
        if causal or offset + 1 == k.shape[2]:  # one new query sees everything
            right = None
    seen = visible_keys(q.shape[2], k.shape[2], offset, left=left, right=right, device=q.device)
    if nonpad_kv_seqlen is not None:
        filled = torch.arange(k.shape[2], device=q.device) < nonpad_kv_seqlen.view(-1, 1, 1, 1)
        seen = combine_masks(seen, filled)
    mask = combine_masks(mask, seen)

    scores = None
    if outputs < 4 and not softcap and fused_precision(q.dtype, softmax_precision):
        y = attend(q, k, v.to(q.dtype), mask, causal=causal, scale=scale)
    else:
        if causal:
            mask = visible_keys(q.shape[2], k.shape[2], offset, left=None, right=0, device=q.device)
        y, scores = _attend_unfused(
            q, k, v, mask, scale, softcap, softmax_precision, qk_matmul_output_mode
        )
    return merge_heads(y) if flat else y, k, v, scores


def full_mask(mask: Tensor | None, keys: int, dtype: torch.dtype) -> Tensor | None:
    """The mask in four dimensions, the keys beyond its end hidden."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        mask = mask.to(dtype)
    if mask.shape[-1] < keys:
        hidden = 0 if mask.dtype == torch.bool else -math.inf
        mask = F.pad(mask, (0, keys - mask.shape[-1]), value=hidden)
    return mask.view((1,) * (4 - mask.dim()) + mask.shape)


def fused_precision(dtype: torch.dtype, softmax_precision: int | None) -> bool:
    """Whether the fused kernel's softmax (at least float32) has the requested precision."""
    if softmax_precision is None:
        return True
    asked = torch_dtype(softmax_precision)
    return asked in (dtype, torch.promote_types(dtype, torch.float32))


def _attend_unfused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    softcap: float,
    softmax_precision: int | None,
    mode: int,
) -> tuple[Tensor, Tensor]:
    """Attention by separate operators, and the scores of the stage that `mode` names."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    root = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    raw = (q * root) @ (k * root).transpose(-1, -2)
    capped = softcap * torch.tanh(raw / softcap) if softcap else raw
    biased, blind = capped, None
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
        blind = hidden.all(dim=-1, keepdim=True)  # rows that see nothing
        biased = (
            capped.masked_fill(hidden, -math.inf) if mask.dtype == torch.bool else capped + mask
        )
    dtype = q.dtype if softmax_precision is None else torch_dtype(softmax_precision)
    p = biased.to(dtype).softmax(-1)
    if blind is not None:
        p = p.masked_fill(blind, 0)
    p = p.to(q.dtype)
    return p @ v.to(q.dtype), (raw, capped, biased, p)[mode]


@kernel("FlexAttention", domain="ai.onnx.preview")
@float32_on_cpu
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    prob_mod: Branch | None = None,
    scale: float | None = None,
    score_mod: Branch | None = None,
    softmax_precision: int | None = None,
) -> Tensor:
    """y = prob_mod(softmax(score_mod(scale * q k^T))) v"""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if softmax_precision is not None:
        dtype = torch_dtype(softmax_precision)
    if score_mod is None and prob_mod is None and fused_precision(q.dtype, softmax_precision):
        return attend(q, k, v, scale=scale)
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    root = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = ((q * root) @ (k * root).transpose(-1, -2)).to(dtype)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    p = scores.softmax(-1)
    if prob_mod is not None:
        (p,) = prob_mod(p)
    return (p @ v.to(dtype)).to(v.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate each pair (a, b) of x's last axis to (a cos - b sin, a sin + b cos).

    A pair is two neighbours when interleaved, else one of each half. cos and sin broadcast; where
    they are shorter than half of x's last axis, the rest of it stays as it is.
    """
    size = 2 * cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return turned if size == x.shape[-1] else torch.cat((turned, rest), dim=-1)


@kernel("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int,
    num_heads: int | None = None,
    rotary_embedding_dim: int,
) -> Tensor:
    """Rotate pairs of each head by angles that grow with the position."""
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    if x.dim() == 4:  # (batch, heads, length, size)
        return rotate(
            x, cos_cache.unsqueeze(1), sin_cache.unsqueeze(1), interleaved=bool(interleaved)
        )
    assert num_heads
    heads = torch.unflatten(x, 2, (num_heads, -1))  # (batch, length, heads, size)
    cos, sin = cos_cache.unsqueeze(2), sin_cache.unsqueeze(2)
    return rotate(heads, cos, sin, interleaved=bool(interleaved)).flatten(2)


@kernel("LinearAttention")
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float,
    update_rule: str,
) -> tuple[Tensor, Tensor]:
    """S_t = e^(g_t) S_(t-1) + k_t u_t^T and y_t = scale * S_t^T q_t, in float32 or wider.

    u_t is v_t, or beta_t (v_t - e^(g_t) S_(t-1)^T k_t) under a delta rule. Computed a chunk of
    steps at a time, each chunk in parallel.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    q = split_heads(query, q_num_heads).to(dtype)
    k, v = split_heads(key, kv_num_heads).to(dtype), split_heads(value, kv_num_heads).to(dtype)
    gates = None if decay is None else split_heads(decay, kv_num_heads).to(dtype)
    rates = None if beta is None else beta.transpose(1, 2).unsqueeze(-1).to(dtype)
    state_dtype = query.dtype if past_state is None else past_state.dtype
    if past_state is None:
        past_state = q.new_zeros(k.shape[0], kv_num_heads, k.shape[-1], v.shape[-1])
    state, ys = past_state.to(dtype), []
    if gates is not None and gates.shape[-1] > 1:
        chunk_size = 16  # a decay per key needs chunk * chunk * size numbers
    for start in range(0, q.shape[2], chunk_size):
        part = slice(start, start + chunk_size)
        y, state = _linear_chunk(
            q[:, :, part],
            k[:, :, part],
            v[:, :, part],
            None if gates is None else gates[:, :, part].cumsum(2),
            None if rates is None else rates[:, :, part],
            state,
        )
        ys.append(y)
    y = torch.cat(ys, 2) if ys else empty_from(q, [*q.shape[:3], v.shape[-1]])
    y = y * (scale or 1 / math.sqrt(max(q.shape[-1], 1)))
    return merge_heads(y).to(query.dtype), state.to(state_dtype)


def _linear_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, rates: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """All steps of a chunk at once; g is the decay summed since the chunk began.

    S_i = e^(g_i) S_0 + sum over j <= i of e^(g_i - g_j) k_j u_j^T, so that a delta rule's u solve
    the triangular system u_i + beta_i sum over j < i of (k_i . k_j)_decayed u_j = beta_i fresh_i.
    """
    u, faded = v, k if g is None else k * g.exp()
    if rates is not None:
        u = rates * (v - faded @ state)
        if k.shape[2] > 1:
            ties = rates * _decayed_products(k, k, g)
            u = torch.linalg.solve_triangular(ties, u, upper=False, unitriangular=True)

    q = torch.unflatten(q, 1, (k.shape[1], -1))  # (batch, heads, readers of a head, length, size)
    shared_g = None if g is None else g.unsqueeze(2)
    products = _decayed_products(q, k.unsqueeze(2), shared_g)
    q = q if shared_g is None else q * shared_g.exp()
    y = (q @ state.unsqueeze(2) + products @ u.unsqueeze(2)).flatten(1, 2)

    if g is None:
        return y, state + k.transpose(-1, -2) @ u
    last = g[:, :, -1:]
    k = k * (last - g).exp()
    return y, last.exp().transpose(-1, -2) * state + k.transpose(-1, -2) @ u


def _decayed_products(x: Tensor, k: Tensor, g: Tensor | None) -> Tensor:
    """For j <= i the sum over d of x_id k_jd e^(g_id - g_jd), else 0."""
    if g is None:
        return (x @ k.transpose(-1, -2)).tril()
    later = torch.ones(k.shape[-2], k.shape[-2], dtype=torch.bool, device=k.device).triu(1)
    if g.shape[-1] == 1:  # one decay for the whole head
        decay = (g - g.transpose(-1, -2)).masked_fill(later, -math.inf).exp()
        return (x @ k.transpose(-1, -2)) * decay
    gaps = (g.unsqueeze(-2) - g.unsqueeze(-3)).masked_fill(later.unsqueeze(-1), -math.inf)
    return (x.unsqueeze(-2) * gaps.exp() * k.unsqueeze(-3)).sum(-1)
