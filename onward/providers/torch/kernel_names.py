"""Which operators torch may have kernels for, told without loading torch."""

from __future__ import annotations

import onnx

from onward.graph.scopes import COMPOSITES

DOMAINS = frozenset(["", "ai.onnx.preview", "com.microsoft", COMPOSITES])
_UNDEFINED = frozenset(["SimplifiedLayerNormalization"])  # kernels of what ONNX does not define


def may_have(domain: str, operator: str) -> bool:
    """False where no kernel can be: another domain, or a name that ONNX does not define."""
    if domain in ("", "ai.onnx"):
        return onnx.defs.has(operator) or operator in _UNDEFINED
    return domain in DOMAINS
