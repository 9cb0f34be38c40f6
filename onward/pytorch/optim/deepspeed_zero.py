"""Replacements for methods of DeepSpeed's ZeRO-1 and ZeRO-2 optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from onward.pytorch.optim.gradient_norms import has_overflow, total_norm


def replacements(optimizer: Any, **keywords: Any) -> dict[str, Callable[..., Any]]:
    """The methods that check for overflow and compute norms, for one optimizer."""

    def get_grad_norm_direct(
        gradients: Sequence[Tensor], params: Sequence[Any], norm_type: float = 2
    ) -> float:
        """The norm over all processes; -1 if it is not finite, as DeepSpeed has it."""
        norm_type = float(norm_type)
        counted = [g.detach() for g, p in zip(gradients, params) if _is_counted(optimizer, p)]
        norm = total_norm(counted, norm_type)
        if gradients:
            norm = norm.to(gradients[0].device)
        reduction = dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM
        power = norm if norm_type == math.inf else norm**norm_type
        if dist.is_initialized():
            dist.all_reduce(power, op=reduction, group=optimizer.dp_process_group)
        optimizer._model_parallel_all_reduce(tensor=power, op=reduction)
        found = float(power) if norm_type == math.inf else float(power) ** (1 / norm_type)
        return found if math.isfinite(found) else -1.0

    def has_overflow_serial(params: Sequence[Any], is_grad_list: bool = False) -> bool:
        return has_overflow(p if is_grad_list else p.grad for p in params)

    def has_overflow_partitioned_grads_serial() -> bool:
        groups = getattr(optimizer, "fp16_groups", None) or optimizer.bit16_groups
        averaged = optimizer.averaged_gradients
        return has_overflow(g for i in range(len(groups)) for g in averaged[i])

    return {
        "get_grad_norm_direct": get_grad_norm_direct,
        "has_overflow_serial": has_overflow_serial,
        "has_overflow_partitioned_grads_serial": has_overflow_partitioned_grads_serial,
    }


def _is_counted(optimizer: Any, parameter: Any) -> bool:
    """Whether a parameter belongs to this process's share: no replica of another's."""
    if getattr(parameter, "ds_pipe_replicated", False):
        return False
    return bool(getattr(parameter, "model_parallel", False) or optimizer.model_parallel_rank == 0)
