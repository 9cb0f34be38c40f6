"""Find out whether rounding a float32 tensor to 16 bits loses too much."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.passes.low_types.rounding import KINDS, LARGEST, round_to

Array = np.ndarray[Any, Any]

_SMALLEST_NORMAL = 2.0**-14  # of float16
_MOST_ERROR = {"float16": 1e-3, "bfloat16": 8e-3}  # of a tensor; rounding alone costs a quarter
_PART = 1 << 22  # elements that are compared at a time


def check_kind(kind: str) -> ir.DataType:
    """The type of a kind of 16 bits; any other kind is refused."""
    if kind not in KINDS:
        raise OptionError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return KINDS[kind]


def why_not(array: Array, kind: str) -> str:
    """Why 16 bits would change a tensor too much; "" if they do not."""
    squares = lost = 0.0
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _PART):
        part = flat[begin : begin + _PART]
        rounded = round_to(part, kind).astype(np.float32)
        if not np.array_equal(np.isfinite(part), np.isfinite(rounded)):
            largest = float(np.abs(part[np.isfinite(part)]).max())
            return f"its largest number, {largest:.3g}, is beyond {kind}'s {LARGEST[kind]:.6g}"
        finite = np.isfinite(part)
        x = np.where(finite, part, 0).astype(np.float64)
        squares += float((x * x).sum())
        lost += float(((x - np.where(finite, rounded, 0)) ** 2).sum())
    if lost > _MOST_ERROR[kind] ** 2 * squares:
        return f"most of its numbers are below {kind}'s smallest normal one, {_SMALLEST_NORMAL:.1e}"
    return ""
