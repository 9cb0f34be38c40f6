"""InductorExecutionProvider: the lowered graph, compiled by torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from onward.providers.options import SessionOptions
from onward.providers.session_log import log_of
from onward.providers.torch.provider import TorchProvider, settle

_CAPTURED = ("reduce-overhead", "max-autotune")  # modes that record CUDA graphs


def make_inductor(given: Mapping[str, Any], options: SessionOptions) -> TorchProvider:
    """The provider from a session's options.

    Beside `device` it takes `dynamic` (True: one code for all shapes; False: one for each; None:
    as torch finds right) and `mode`, which are torch.compile's own.
    """

    mode = given.get("mode")

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        call = torch.compile(function, dynamic=given.get("dynamic"), mode=mode)
        return call if options.disable_fallback else _or_eager(call, function, log_of(options))

    device = settle(given, options)
    captured = device.type == "cuda" and mode in _CAPTURED
    return TorchProvider("InductorExecutionProvider", device, compiled, captured=captured)


def _or_eager(
    call: Callable[..., Any], function: Callable[..., Any], log: logging.Logger
) -> Callable[..., Any]:
    """A compiled function that goes on uncompiled when torch cannot compile it."""
    broken = False

    def run(*feeds: Any) -> Any:
        nonlocal broken
        if not broken:
            try:
                return call(*feeds)
            except (TorchDynamoException, InductorError) as error:
                reason = str(error).strip().splitlines()[0]
                log.warning(
                    "Inductor cannot compile this graph, torch runs it as it is: %s", reason
                )
                broken = True
        return function(*feeds)

    return run
