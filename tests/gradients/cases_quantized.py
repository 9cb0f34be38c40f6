"""Cases of rules/quantized.py: straight through, so central differences say nothing.

They are computed in float32, the widest type that quantises. test_quantized.py holds these rules
against the formula in numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, between, normal


def fake(zero: Any, dtype: Any = np.int8, **attributes: Any) -> Any:
    def write(op: Any, x: Any, s: Any) -> Any:
        kind, point = int(x.dtype), np.asarray(zero, dtype)
        x, s = op.Cast(x, to=1), op.Cast(s, to=1)
        q = op.QuantizeLinear(x, s, point, **attributes)
        return op.Cast(op.DequantizeLinear(q, s, point, **attributes), to=kind)

    return write


def dynamic(op: Any, x: Any) -> Any:
    q, s, z = op.DynamicQuantizeLinear(op.Cast(x, to=1), outputs=3)
    return op.Cast(op.DequantizeLinear(q, s, z), to=int(x.dtype))


def moved(op: Any, x: Any, s: Any) -> Any:
    """What is quantised is transposed before it is read."""
    kind, point = int(x.dtype), np.asarray(0, np.int8)
    x, s = op.Cast(x, to=1), op.Cast(s, to=1)
    q = op.Transpose(op.QuantizeLinear(x, s, point), perm=[1, 0])
    return op.Cast(op.DequantizeLinear(q, s, point), to=kind)


WIDE = {"x": normal(3, 4) * 3, "s": np.array(0.02)}
EACH = {"x": normal(3, 4) * 3, "s": between(0.01, 0.03, 4)}
BLOCKS = {"x": normal(3, 5) * 3, "s": between(0.01, 0.03, 3, 3)}
# what is stated by convention: no limit of differences, and autograd sees a round that is flat
OPTIONS: dict[str, Any] = {"differences": False, "autograd": False}

CASES = [
    Case("QuantizeLinear", fake(3), WIDE, "one scale, some clipped", **OPTIONS),
    Case("DequantizeLinear", fake(3), WIDE, "one scale", **OPTIONS),
    Case("QuantizeLinear", fake([0, 1, 2, 3], axis=1), EACH, "a scale for each", **OPTIONS),
    Case(
        "QuantizeLinear", fake(np.zeros((3, 3)), axis=1, block_size=2), BLOCKS, "blocks", **OPTIONS
    ),
    Case("QuantizeLinear", fake(128, np.uint8), WIDE, "unsigned", **OPTIONS),
    Case("QuantizeLinear", moved, WIDE, "transposed", **OPTIONS),
    Case("DynamicQuantizeLinear", dynamic, {"x": normal(3, 4)}, **OPTIONS),
]
