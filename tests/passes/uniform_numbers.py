"""The numbers of `onward::Uniform`, computed by numpy: to compare engines with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.passes.random_functions import DRAW_FACTORS, FRACTION, MIX_32, MIX_64, NODE_FACTOR

Array = np.ndarray[Any, Any]


def uniform_numbers(draw: Sequence[int], node: int, count: int) -> Array:
    """The first numbers of one call."""
    total = sum(word * factor for word, factor in zip(draw, DRAW_FACTORS)) % 2**64
    key = int(_mix(np.array([total], np.uint64), MIX_64)[0])
    own = int(_mix(np.array([node * NODE_FACTOR % 2**32], np.uint32), MIX_32)[0])
    offset = np.array([(key + own) % 2**32], np.uint32)
    step = np.array([(key >> 32) ^ own | 1], np.uint32)
    h = _mix(np.arange(count, dtype=np.uint32) * step + offset, MIX_32)
    numbers: Array = (h >> np.uint32(32 - FRACTION)).astype(np.float32) * np.float32(2**-FRACTION)
    return numbers


def _mix(h: Array, steps: Any) -> Array:
    for shift, factor in steps:
        h = h ^ (h >> h.dtype.type(shift))
        h = h if factor is None else h * h.dtype.type(factor)
    return h
