"""Hooks of submodules: a trace calls them once, PyTorch in every call."""

from __future__ import annotations

import sys

from torch import nn

from onward.pytorch.fallback import Hooked

# Hooks that a trace may call once: these collect what the traced call returns,
_COLLECTING = "transformers.utils.output_capturing"
_TRACEABLE = (
    _COLLECTING,
    "transformers.modeling_utils",  # lets embeddings require gradients
    "torch.nn.utils.prune",  # compute a weight from parameters and buffers, which the graph does
    "torch.nn.utils.spectral_norm",
    "torch.nn.utils.weight_norm",
)


def is_collected() -> bool:
    """Whether a model of transformers that runs in PyTorch collects results of its submodules."""
    collecting = sys.modules.get(_COLLECTING)
    return collecting is not None and collecting._active_collector.get() is not None


def refuse_hooks(module: nn.Module) -> None:
    """Refuse to capture a module that has submodules with hooks.

    Its own hooks are no reason: they run around the captured graph.
    """
    traceable = _TRACEABLE[1:] if is_collected() else _TRACEABLE
    for name, each in module.named_modules():
        hooks = [
            *each._forward_pre_hooks.values(),
            *each._forward_hooks.values(),
            *each._backward_pre_hooks.values(),
            *each._backward_hooks.values(),
        ]
        if name and any(getattr(hook, "__module__", "") not in traceable for hook in hooks):
            raise Hooked(f"its submodule {name!r} has hooks, which run in every call")
