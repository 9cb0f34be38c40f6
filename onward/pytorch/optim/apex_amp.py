"""Replacements for methods of an optimizer that apex.amp.initialize has changed (O2)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def replacements(optimizer: Any, **keywords: Any) -> dict[str, Callable[..., Any]]:
    """The methods that unscale gradients into float32 ones, and remove them."""

    def _post_amp_backward(scaler: Any) -> None:
        optimizer._amp_lazy_init()
        stash = optimizer._amp_stash
        _unscale(stash.all_fp16_params, stash.all_fp32_from_fp16_params, scaler)
        process = sys.modules["apex.amp._process_optimizer"]
        process.post_backward_models_are_masters(
            scaler, stash.all_fp32_from_fp32_params, stash.all_fp32_from_fp32_grad_stash
        )

    def zero_grad(set_to_none: bool = True) -> None:
        optimizer._amp_lazy_init()
        stash = optimizer._amp_stash
        for p in [*stash.all_fp16_params, *stash.all_fp32_from_fp32_params]:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.detach_().zero_()
        for p in stash.all_fp32_from_fp16_params:  # made from the others in each step
            p.grad = None

    methods: dict[str, Callable[..., Any]] = {"zero_grad": zero_grad}
    if type(optimizer).__name__ != "FusedSGD":  # apex's own, which unscales by itself
        methods["_post_amp_backward"] = _post_amp_backward
    return methods


def _unscale(halves: list[Any], masters: list[Any], scaler: Any) -> None:
    """Add the float16 gradients, divided by the loss scale, to those of the float32 copies."""
    pairs = [(half, master) for half, master in zip(halves, masters) if half.grad is not None]
    if not pairs:
        return
    gradients = [half.grad.detach().float() for half, _ in pairs]
    device = gradients[0].device
    found = torch.zeros((), device=device)
    inverse = torch.full((), 1.0 / float(scaler.loss_scale()), device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
    scaler._overflow_buf.copy_(torch.maximum(scaler._overflow_buf.to(found.dtype), found))
    for (_, master), gradient in zip(pairs, gradients):
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
