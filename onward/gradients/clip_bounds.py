"""Clip nodes whose gradient is 0 at their bounds, too: ReLU6 and hardtanh of PyTorch.

ONNX leaves the gradient there open; that of torch.clamp is dy, that of the activations is 0. Such
nodes have a mark in their metadata, which any engine ignores.
"""

from __future__ import annotations

import onnx_ir as ir

_MARK = "onward.no_gradient_at_bounds"


def stop_at_bounds(clip: ir.Node) -> None:
    """Let a Clip node have no gradient where x is one of its bounds."""
    clip.metadata_props[_MARK] = "1"


def stops_at_bounds(clip: ir.Node) -> bool:
    return _MARK in clip.metadata_props
