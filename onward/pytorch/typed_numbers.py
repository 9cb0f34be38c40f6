"""Constants in the type of a tensor, for translations: a Python float would be one of 32 bits."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

op: Any = opset18


def number(value: float, x: Any) -> Any:
    """A number in x's type, with all of its bits."""
    if x.dtype is None:
        return op.CastLike(value, x)
    return op.Constant(value=ir.tensor(value, dtype=x.dtype))
