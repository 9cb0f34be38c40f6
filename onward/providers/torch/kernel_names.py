"""Which operators torch may have kernels for, known without loading torch."""

from __future__ import annotations

import onnx

from onward.graph.scopes import COMPOSITES

DOMAINS = frozenset(["", "ai.onnx.preview", "com.microsoft", COMPOSITES])
_UNDEFINED = frozenset(["SimplifiedLayerNormalization"])  # ONNX has no schema, torch has a kernel


def may_have(domain: str, operator: str) -> bool:
    """Whether a kernel may exist: False for other domains and names that ONNX does not define."""
    if domain in ("", "ai.onnx"):
        return onnx.defs.has(operator) or operator in _UNDEFINED
    return domain in DOMAINS
