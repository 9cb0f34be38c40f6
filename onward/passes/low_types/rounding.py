"""The 16-bit types, their ranges, and float32 tensors rounded to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

KINDS = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
LARGEST = {"float16": 65504.0, "bfloat16": (2.0 - 2.0**-7) * 2.0**127}  # what is above is infinite


def round_to(array: Array, kind: str) -> Array:
    """The nearest numbers of 16 bits; beyond the largest one, infinity."""
    with np.errstate(over="ignore"):
        return array.astype(KINDS[kind].numpy())


def clamp(array: Array, kind: str) -> Array:
    """Numbers beyond the largest one of 16 bits as that one; infinities stay."""
    limited = np.clip(array, -LARGEST[kind], LARGEST[kind])
    return np.where(np.isinf(array), array, limited).astype(array.dtype)
