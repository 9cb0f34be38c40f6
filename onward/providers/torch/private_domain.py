"""The domain of operators that this provider's passes write for its own kernels."""

from __future__ import annotations

DOMAIN = "onward.torch"
