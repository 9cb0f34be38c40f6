"""Cases of rules/tokens.py: three of five rows are kept, in a bucket of four."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, normal

GATHER, RESTORE = np.array([0, 2, 3, 0]), np.array([0, 4, 1, 2, 4])
FULL = np.array([0, 2, 3])


def _call(op: Any, name: str, x: Any, gather: Any, restore: Any) -> Any:
    rows = restore if name == "UnpackTokens" else gather
    y = op.node(name, (x, op.constant(gather), op.constant(restore)), {}, domain="onward")
    y.type, y.shape = x.type, ir.Shape([len(rows), *list(x.shape)[1:]])
    return y


def packed(op: Any, x: Any) -> Any:
    return op.Sin(_call(op, "PackTokens", op.Mul(x, x), FULL, np.array([0, 3, 1, 2, 3])))


def gradients(op: Any, x: Any) -> Any:
    return op.Sin(_call(op, "PackGradients", op.Mul(x, x), GATHER, RESTORE))


def unpacked(op: Any, x: Any) -> Any:
    return op.Sin(_call(op, "UnpackTokens", op.Mul(x, x), GATHER, RESTORE))


def both(op: Any, x: Any, w: Any) -> Any:
    rows = op.MatMul(_call(op, "PackTokens", op.Sin(x), GATHER, RESTORE), w)
    return op.Sin(_call(op, "UnpackTokens", op.Exp(rows), GATHER, RESTORE))


CASES = [
    Case("onward::PackTokens", packed, {"x": normal(5, 3)}),
    Case("onward::PackGradients", gradients, {"x": normal(5, 3)}),
    Case("onward::UnpackTokens", unpacked, {"x": normal(4, 2, 3)}, "three axes"),
    Case("onward::UnpackTokens", both, {"x": normal(5, 3), "w": normal(3, 2)}, "after packing"),
]
