"""FP16_Optimizer: faster overflow checks and norms for the FP16 optimizers of other libraries.

These libraries check gradient by gradient, with one read of the device each. The replacements
compute all norms in a few kernels and read the device once.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from onward.pytorch.optim import apex_amp, deepspeed_zero, megatron_fp16

APEX = "apex.amp.optimizer.unique_name_as_id"  # amp changes any optimizer, and marks it
ACCELERATE = "accelerate.utils.deepspeed.DeepSpeedOptimizerWrapper"
DEEPSPEED = (
    "deepspeed.runtime.zero.stage2.FP16_DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
)
OLDEST, NEWEST = (0, 4, 0), (0, 9, 1)  # of DeepSpeed, between which the methods mean the same

Methods = dict[str, Callable[..., Any]]  # what replaces a method of an optimizer

# The class's full name -> the methods to replace, from the optimizer and the keywords.
REPLACEMENTS: dict[str, Callable[..., Methods]] = {
    **dict.fromkeys(DEEPSPEED, deepspeed_zero.replacements),
    "megatron.fp16.fp16.FP16_Optimizer": megatron_fp16.replacements,
    APEX: apex_amp.replacements,
}


def FP16_Optimizer(optimizer: Any, **keywords: Any) -> Any:
    """Replace methods of DeepSpeed's, Megatron-LM's or apex's FP16 optimizer by faster ones.

    The optimizer is changed and returned. Any other optimizer is returned as it is, with a
    warning. Megatron-LM's takes `get_tensor_model_parallel_rank` and
    `get_tensor_model_parallel_group`, two functions.
    """
    target, name = optimizer, _full_name(optimizer)
    if name == ACCELERATE and hasattr(optimizer, "optimizer"):
        target, name = optimizer.optimizer, _full_name(optimizer.optimizer)
    reason = _why_not(target, name)
    if reason is None:
        methods = REPLACEMENTS[name](target, **keywords)
        missing = [each for each in methods if not callable(getattr(target, each, None))]
        reason = f"{name} has no {missing[0]}" if missing else None
    if reason is not None:
        warnings.warn(
            f"FP16_Optimizer did not change the optimizer: {reason}", UserWarning, stacklevel=2
        )
        return optimizer
    for method, function in methods.items():
        setattr(target, method, function)
    return optimizer


def _full_name(optimizer: Any) -> str:
    if hasattr(optimizer, "_amp_stash"):
        return APEX
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _why_not(optimizer: Any, name: str) -> str | None:
    """The reason for which an optimizer stays as it is, or None."""
    if name not in REPLACEMENTS:
        return (
            f"{name} is not an FP16 optimizer of DeepSpeed, Megatron-LM or apex\n"
            "for mixed precision with an optimizer of torch, use torch.amp.GradScaler"
        )
    if name in DEEPSPEED:
        version = str(getattr(sys.modules.get("deepspeed"), "__version__", ""))
        parts = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        if not OLDEST <= parts <= NEWEST:
            found = version or "unknown"
            return f"DeepSpeed's version is {found}, supported are 0.4.0 to 0.9.1"
    return None
