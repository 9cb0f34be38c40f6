"""InductorExecutionProvider: runs the lowered graph compiled by torch.compile."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from onward.message_text import first_line
from onward.providers.options import SessionOptions
from onward.providers.session_log import log_of
from onward.providers.torch.joined_kernels import join_only_small
from onward.providers.torch.kept_order import KeptOrder
from onward.providers.torch.provider import TorchProvider, configure_torch

_LOG = logging.getLogger("onward")  # of steps: a training session's own level hides warnings

# modes that record CUDA graphs, and the same without
_CAPTURED: dict[str | None, str | None] = {
    "reduce-overhead": None,
    "max-autotune": "max-autotune-no-cudagraphs",
}

# A step has hundreds of small independent kernels (casts, copies): Inductor joins them. Joined
# reductions were slower (ResNet-50 on an H200), and so were large kernels (joined_kernels.py).
_STEP: dict[str, Any] = {"combo_kernels": True, "combo_kernels_pointwise_only": True}

# Inductor would move each gradient to the end of a step, where all of them are joined, and keep
# what it is computed from until then. Its own search for the order that needs the least memory does
# so as well (torch 2.11: 17 GB instead of 7.5 for GPT-2).
_ORDER: dict[str, Any] = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "_post_fusion_custom_pass": KeptOrder(),
}


def make_inductor(given: Mapping[str, Any], options: SessionOptions) -> TorchProvider:
    """InductorExecutionProvider from a session's options.

    In addition to `device` it takes torch.compile's `dynamic` (True: one code for all shapes;
    False: one for each; None: torch decides) and `mode`, and `capture`: whether the steps of
    training are recorded as CUDA graphs, which they are by default on a GPU.
    """
    mode = given.get("mode")
    device = configure_torch(given, options)
    on_gpu = device.type == "cuda"

    def compile_in(
        mode: str | None, log: logging.Logger, function: Callable[..., Any], **more: Any
    ) -> Callable[..., Any]:
        call = torch.compile(function, dynamic=given.get("dynamic"), **_by_mode(mode, **more))
        if more.get("combo_kernels"):
            call = join_only_small(call)
        return call if options.disable_fallback else _with_eager_fallback(call, function, log)

    compile_step = functools.partial(compile_in, _CAPTURED.get(mode, mode), _LOG)
    return TorchProvider(
        "InductorExecutionProvider",
        device,
        functools.partial(compile_in, mode, log_of(options)),
        captured=on_gpu and mode in _CAPTURED,
        step_compiler=functools.partial(compile_step, **(_STEP if on_gpu else {})),
        ordered_compiler=functools.partial(compile_step, **_ORDER),
        captures_steps=on_gpu and bool(given.get("capture", True)),
    )


def _by_mode(mode: str | None, **options: Any) -> dict[str, Any]:
    """torch.compile's arguments for a mode and options of Inductor, which it takes one of."""
    options = {name: on for name, on in options.items() if hasattr(torch._inductor.config, name)}
    if not options:
        return {"mode": mode}
    return {"options": {**(torch._inductor.list_mode_options(mode) if mode else {}), **options}}


def _with_eager_fallback(
    call: Callable[..., Any], function: Callable[..., Any], log: logging.Logger
) -> Callable[..., Any]:
    """A compiled function that runs eagerly when torch cannot compile it."""
    broken = False

    def run(*feeds: Any) -> Any:
        nonlocal broken
        if not broken:
            try:
                return call(*feeds)
            except (TorchDynamoException, InductorError) as error:
                reason = first_line(error)
                log.warning("Inductor cannot compile this graph, torch runs it eagerly: %s", reason)
                broken = True
        return function(*feeds)

    return run
