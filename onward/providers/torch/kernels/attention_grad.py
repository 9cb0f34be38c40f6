"""Attention for training: torch's fused kernels, forward and backward, with the log-sum-exp kept.

The operators are private (domain `onward.torch`): `providers/torch/fused_attention.py` writes them
in place of an attention and its gradient, and chooses one of torch's kernels for both:

    y, lse, seed, offset = AttentionForward(q, k, v, mask)
    dq, dk, dv = AttentionBackward(dy, q, k, v, mask, y, lse, seed, offset)

Both prepare the kernel's inputs by the same rules, so that the backward can read what the forward
kept. `seed` and `offset` are dropout's: some kernels require them. Fully masked rows are zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.kernels.attention import (
    full_mask,
    merge_heads,
    repeat_heads,
    split_heads,
)
from onward.providers.torch.kernels.hidden_samples import without_hidden
from onward.providers.torch.private_domain import DOMAIN

kernel = OpTable()
aten = torch.ops.aten
CPU, FLASH, EFFICIENT, CUDNN = "cpu", "flash", "efficient", "cudnn"
_GROUPS_HEADS = (FLASH, CUDNN)  # they take fewer key heads than query heads
_STEP = 8  # a head's size, and a mask's rows, are multiples of it on CUDA


class _KernelInputs(NamedTuple):
    """Inputs of a fused kernel: four axes each, heads shared or repeated, sizes padded."""

    backend: str
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    sees: Tensor | None = None  # false for fully masked queries, which the kernel gives values


@kernel("AttentionForward", domain=DOMAIN)
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    backend: str,
    is_causal: int,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """y = softmax(scale * q k^T + mask) v, the log-sum-exp of each row's scores, seed, offset."""
    flat, causal = q.dim() == 3, bool(is_causal)
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    if _is_empty(q, k, v):
        y = q.new_zeros((*q.shape[:3], v.shape[3]))
        none = q.new_zeros((), dtype=torch.int64)
        return merge_heads(y) if flat else y, q.new_zeros(q.shape[:3]), none, none
    given = _kernel_inputs(q, k, v, mask, backend, causal=causal, scale=scale)
    y, *kept = _forward(given, causal)
    y = y[..., : v.shape[3]].to(q.dtype)
    y = y if given.sees is None else without_hidden(y, given.sees)
    return merge_heads(y) if flat else y, *kept


@kernel("AttentionBackward", domain=DOMAIN)
def attention_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    y: Tensor,
    lse: Tensor | None = None,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    backend: str,
    is_causal: int,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dv = p' dy, ds = p (dy v' - sum(dy y)), dq = scale ds k, dk = scale ds' q"""
    causal, shapes = bool(is_causal), (q.shape, k.shape, v.shape)
    flat, dtype = q.dim() == 3, q.dtype
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    dy, y = _heads(dy, q_num_heads), _heads(y, q_num_heads)
    if _is_empty(q, k, v):
        return dy.new_zeros(shapes[0]), dy.new_zeros(shapes[1]), dy.new_zeros(shapes[2])
    given = _kernel_inputs(q, k, v, mask, backend, causal=causal, scale=scale)
    size = given.v.shape[3]
    dy = dy if given.sees is None else without_hidden(dy, given.sees)
    dy, y = _padded(dy, size).to(given.q.dtype), _padded(y, size).to(given.q.dtype)
    dq, dk, dv = _backward(given, dy, y, lse, seed, offset, causal)
    dk, dv = _shared_gradient(dk, k), _shared_gradient(dv, v)
    dq, dk, dv = dq[..., : q.shape[3]], dk[..., : k.shape[3]], dv[..., : v.shape[3]]
    dq, dk, dv = dq.to(dtype), dk.to(dtype), dv.to(dtype)
    return (merge_heads(dq), merge_heads(dk), merge_heads(dv)) if flat else (dq, dk, dv)


# -- inputs of the kernels -----------------------------------------------------------------------


def _heads(x: Tensor, heads: int | None) -> Tensor:
    """(batch, heads, length, size), of four axes or three."""
    if x.dim() == 4:
        return x
    assert heads is not None
    return split_heads(x, heads)


def _is_empty(*tensors: Tensor) -> bool:
    return any(0 in tensor.shape for tensor in tensors)


def _kernel_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    backend: str,
    *,
    causal: bool,
    scale: float | None,
) -> _KernelInputs:
    """The inputs as a fused kernel takes them, and which kernel it is."""
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    if backend in _GROUPS_HEADS and causal and q.shape[2] != k.shape[2]:
        backend = EFFICIENT  # flash attention counts a causal mask from the last query
    if backend == CPU and q.dtype != torch.float64:  # see half_precision.py
        q, k, v = q.float(), k.float(), v.float()
    if backend not in _GROUPS_HEADS:
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    size = _padded_size(backend, q, v)
    mask, sees = full_mask(mask, k.shape[2], q.dtype), None
    if mask is not None and backend == CUDNN:  # a fully masked query would attend to all keys
        seen = mask.any(-1, keepdim=True)
        mask, sees = mask | ~seen, seen
    bias = None if mask is None else _bias(mask, q, k, backend)
    q, k, v = _padded(q, size), _padded(k, size), _padded(v, size)
    return _KernelInputs(backend, q, k, v, bias, scale, sees)


def _padded_size(backend: str, q: Tensor, v: Tensor) -> int:
    """The size of a head that fits q and v and that the kernel supports."""
    size = max(q.shape[3], v.shape[3])
    return size if backend == CPU else size + -size % _STEP


def _padded(x: Tensor, size: int) -> Tensor:
    """Append zeros to each head: they add nothing to matrix products."""
    missing = size - x.shape[3]
    return F.pad(x, (0, missing)) if missing else x


def _bias(mask: Tensor, q: Tensor, k: Tensor, backend: str) -> Tensor:
    """The bias that is added to the scores; on CUDA of their shape, with aligned rows."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    if backend == CPU:
        return mask
    missing = -mask.shape[3] % _STEP
    if missing:
        mask = F.pad(mask, (0, missing))[..., : mask.shape[3]]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _shared_gradient(d: Tensor, x: Tensor) -> Tensor:
    """Sum the gradients of repeated heads to those of the original heads."""
    if d.shape[1] == x.shape[1]:
        return d
    return torch.unflatten(d, 1, (x.shape[1], -1)).sum(2)


# -- torch's kernels -----------------------------------------------------------------------------


def _forward(
    given: _KernelInputs, causal: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    backend, q, k, v, bias, scale, _ = given
    if backend == FLASH:
        found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
        return found[0], found[1], found[6], found[7]
    if backend == CUDNN:
        found = aten._scaled_dot_product_cudnn_attention(
            q, k, v, bias, True, 0.0, causal, scale=scale
        )
        return found[0], found[1], found[6], found[7]
    if backend == EFFICIENT:
        y, lse, seed, offset = aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, 0.0, causal, scale=scale
        )
        return y, lse, seed, offset
    y, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=bias, scale=scale
    )
    return y, lse, None, None


def _backward(
    given: _KernelInputs,
    dy: Tensor,
    y: Tensor,
    lse: Tensor | None,
    seed: Tensor | None,
    offset: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    backend, q, k, v, bias, scale, _ = given
    lengths = q.shape[2], k.shape[2]
    if backend == FLASH:
        found = aten._scaled_dot_product_flash_attention_backward(
            dy, q, k, v, y, lse, None, None, *lengths, 0.0, causal, seed, offset, scale=scale
        )
    elif backend == CUDNN:
        kept = (y, lse, seed, offset)
        found = aten._scaled_dot_product_cudnn_attention_backward(
            dy, q, k, v, *kept, bias, None, None, *lengths, 0.0, causal, scale=scale
        )
    elif backend == EFFICIENT:
        y = y.transpose(1, 2).contiguous().transpose(1, 2)  # the only layout that it supports
        kept = (y, lse, seed, offset)
        wanted = [True, True, True, False]
        found = aten._scaled_dot_product_efficient_attention_backward(
            dy, q, k, v, bias, *kept, 0.0, wanted, causal, scale=scale
        )
    else:
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dy, q, k, v, y, lse, 0.0, causal, attn_mask=bias, scale=scale
        )
    dq, dk, dv = found[:3]
    return dq, dk, dv
