"""One update of Adam, on lists of tensors by torch's fused kernels, or on one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices


@dataclass(frozen=True, kw_only=True)
class AdamCall:
    """The numbers of one update in torch's formula, for any of the three formulas."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    step: float  # infinity: without bias correction, since beta^infinity = 0
    decoupled: bool  # weight decay as AdamW has it, not added to the gradient

    @staticmethod
    def of_mode(
        mode: str,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        step: float,
    ) -> AdamCall:
        """The call that has a mode's result.

        Transformers' AdamW is torch's with other numbers. With c1, c2 as in FusedAdam:

            lr sqrt(c2) / c1 m / (sqrt(v) + eps) = lr (m / c1) / (sqrt(v / c2) + eps / sqrt(c2))
            (p - lr u) (1 - lr wd) = p (1 - lr wd) - lr (1 - lr wd) u

        so eps becomes eps / sqrt(c2), lr becomes lr (1 - lr wd), and lr wd stays the same.
        """
        if mode == "ADAMW_TRANSFORMERS":
            c2 = 1 - betas[1] ** step
            eps /= math.sqrt(c2)
            rest = 1 - lr * weight_decay or 1e-30  # lr wd must stay, even where it is 1
            lr, weight_decay = lr * rest, weight_decay / rest
        return AdamCall(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            step=step,
            decoupled=mode != "ADAM_L2_REGULARIZATION",
        )


def update_fused(
    call: AdamCall,
    step: Tensor,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
) -> None:
    """Update tensors of one device and data type in place, in one kernel where torch has it."""
    if params[0].device.type not in _get_fused_kernels_supported_devices():
        for tensors in zip(params, grads, averages, squares):
            update_separately(call, *tensors)
        return
    kernel: Any = torch._fused_adamw_ if call.decoupled else torch._fused_adam_
    kernel(
        params,
        grads,
        averages,
        squares,
        [],
        [step] * len(params),
        lr=call.lr,
        beta1=call.betas[0],
        beta2=call.betas[1],
        weight_decay=call.weight_decay,
        eps=call.eps,
        amsgrad=False,
        maximize=False,
    )


def update_separately(call: AdamCall, p: Tensor, grad: Tensor, m: Tensor, v: Tensor) -> None:
    """Update one tensor in place, whatever its strides and device."""
    beta1, beta2 = call.betas
    if call.decoupled:
        p.mul_(1 - call.lr * call.weight_decay)
    elif call.weight_decay:
        grad = grad.add(p, alpha=call.weight_decay)
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    c1, c2 = 1 - beta1**call.step, 1 - beta2**call.step
    p.addcdiv_(m, v.div(c2).sqrt_().add_(call.eps), value=-call.lr / c1)
