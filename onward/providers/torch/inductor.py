"""InductorExecutionProvider: runs the lowered graph compiled by torch.compile."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from onward.providers.options import SessionOptions
from onward.providers.session_log import log_of
from onward.providers.torch.provider import TorchProvider, configure_torch

# modes that record CUDA graphs, and the same without
_CAPTURED: dict[str | None, str | None] = {
    "reduce-overhead": None,
    "max-autotune": "max-autotune-no-cudagraphs",
}

# Inductor would move each gradient to the end of a step, where all of them are joined, and keep
# what it is computed from until then.
_ORDER = {"reorder_for_locality": False}


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
        mode: str | None, function: Callable[..., Any], in_order: bool = False
    ) -> Callable[..., Any]:
        # torch takes a mode or options: a mode is a set of options
        chosen: dict[str, Any] = {"mode": mode}
        if in_order:
            chosen = {"options": {**torch._inductor.list_mode_options(mode or "default"), **_ORDER}}
        call = torch.compile(function, dynamic=given.get("dynamic"), **chosen)
        return (
            call
            if options.disable_fallback
            else _with_eager_fallback(call, function, log_of(options))
        )

    step_mode = _CAPTURED.get(mode, mode)
    return TorchProvider(
        "InductorExecutionProvider",
        device,
        functools.partial(compile_in, mode),
        captured=on_gpu and mode in _CAPTURED,
        step_compiler=functools.partial(compile_in, step_mode),
        ordered_compiler=functools.partial(compile_in, step_mode, in_order=True),
        captures_steps=on_gpu and bool(given.get("capture", True)),
    )


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
                reason = str(error).strip().splitlines()[0]
                log.warning("Inductor cannot compile this graph, torch runs it eagerly: %s", reason)
                broken = True
        return function(*feeds)

    return run
