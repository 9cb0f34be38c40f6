"""Finite numbers: the check of gradients before they reach the parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NOT_FINITE = "step %d: gradients are not finite, no update"  # what a log says of a skipped step


def is_finite(vector: np.ndarray[Any, Any]) -> bool:
    """Whether every number is finite: 3e38 is, even where float32 cannot hold the sum of two.

    >>> is_finite(np.array([3e38, 3e38], np.float32)), is_finite(np.array([0.0, np.nan]))
    (True, False)
    """
    if vector.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        total = np.add.reduce(vector, axis=None)  # one pass without memory; finite: so are all
    return math.isfinite(total) or bool(np.isfinite(vector).all())
