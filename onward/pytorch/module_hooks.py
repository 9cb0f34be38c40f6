"""Hooks of submodules: a trace calls them once, PyTorch in every call."""

from __future__ import annotations

from torch import nn

from onward.pytorch.fallback import Hooked

# These collect what the traced call returns, and let embeddings require gradients.
_TRACEABLE = ("transformers.utils.output_capturing", "transformers.modeling_utils")


def refuse_hooks(module: nn.Module) -> None:
    """Refuse to capture a module that has submodules with hooks.

    Its own hooks are no reason: they run around the captured graph.
    """
    for name, each in module.named_modules():
        hooks = [
            *each._forward_pre_hooks.values(),
            *each._forward_hooks.values(),
            *each._backward_pre_hooks.values(),
            *each._backward_hooks.values(),
        ]
        if name and any(getattr(hook, "__module__", "") not in _TRACEABLE for hook in hooks):
            raise Hooked(f"its submodule {name!r} has hooks, which run in every call")
