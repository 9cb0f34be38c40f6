"""Replacements for methods of Megatron-LM's FP16_Optimizer (version 1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from onward.pytorch.optim.gradient_norms import clip_by_norm, has_overflow, total_norm


def replacements(
    optimizer: Any,
    *,
    get_tensor_model_parallel_rank: Callable[[], int] | None = None,
    get_tensor_model_parallel_group: Callable[[], Any] | None = None,
    **keywords: Any,
) -> dict[str, Callable[..., Any]]:
    """The methods that check for overflow and clip gradients, for one optimizer."""
    rank, group = get_tensor_model_parallel_rank, get_tensor_model_parallel_group
    rank = rank or keywords.get("get_horizontal_model_parallel_rank")  # its older names
    group = group or keywords.get("get_horizontal_model_parallel_group")

    def _check_overflow() -> bool:
        groups = [*optimizer.fp16_groups, *optimizer.fp32_from_fp32_groups]
        optimizer.overflow = has_overflow(p.grad for params in groups for p in params)
        return bool(optimizer.overflow)

    def clip_master_grads(max_norm: float, norm_type: float = 2) -> float:
        """Clip the float32 gradients; return their norm before, or -1 after an overflow."""
        if optimizer.overflow:
            return -1
        params = [p for each in optimizer.optimizer.param_groups for p in each["params"]]
        params = [p for p in params if p.grad is not None]
        gradients = [p.grad.detach() for p in params]
        norm = _norm(params, float(norm_type), rank, group)
        clip_by_norm(gradients, norm, float(max_norm))
        return norm

    return {"_check_overflow": _check_overflow, "clip_master_grads": clip_master_grads}


def _norm(
    params: list[Any],
    norm_type: float,
    rank: Callable[[], int] | None,
    group: Callable[[], Any] | None,
) -> float:
    """The norm of the gradients, over the processes that divide tensors if these are given."""
    if rank is None or group is None:
        return float(total_norm([p.grad.detach() for p in params], norm_type))
    own = [p for p in params if getattr(p, "model_parallel", False) or rank() == 0]
    norm = total_norm([p.grad.detach() for p in own], norm_type)
    if params:
        norm = norm.to(params[0].grad.device)
    if norm_type == math.inf:
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=group())
        return float(norm)
    power = norm**norm_type
    dist.all_reduce(power, op=dist.ReduceOp.SUM, group=group())
    return float(power ** (1 / norm_type))
