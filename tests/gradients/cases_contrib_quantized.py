"""Cases of rules/contrib_quantized.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, integers, normal, positive

_ROWS, _COLUMNS, _BLOCK = 5, 40, 16  # three blocks, the last of them half full


def _nbits(note: str, bits: int, given: str = "", *, zeros: str = "", ort: bool = True) -> Case:
    feeds: dict[str, Any] = {
        "a": normal(2, 3, _COLUMNS),
        "b": integers(0, 256, _ROWS, 3, _BLOCK * bits // 8).astype(np.uint8),
        "scales": positive(_ROWS * 3),
    }
    if zeros == "bytes":
        feeds["zeros"] = integers(0, 256, _ROWS * -(-3 * bits // 8), seed=1).astype(np.uint8)
    elif zeros == "floats":
        feeds["zeros"] = normal(_ROWS, 3, seed=1)
    if "order" in given:
        feeds["order"] = integers(0, 3, _COLUMNS, seed=2).astype(np.int32)
    if "bias" in given:
        feeds["bias"] = normal(_ROWS, seed=3)

    def build(op: Any, **inputs: Any) -> Any:
        values = [inputs.get(name) for name in ("a", "b", "scales", "zeros", "order", "bias")]
        attributes = {"N": _ROWS, "K": _COLUMNS, "bits": bits, "block_size": _BLOCK}
        node = ir.node("MatMulNBits", values, attributes, domain="com.microsoft")
        op.graph.append(node)
        op.graph.opset_imports.setdefault("com.microsoft", 1)
        (y,) = node.outputs
        y.name, y.type = op.name("y"), inputs["a"].type
        y.shape = ir.Shape([*inputs["a"].shape[:2], _ROWS])
        return y

    return Case("com.microsoft::MatMulNBits", build, feeds, note, ort=ort)


CASES = [
    _nbits("", 4),
    _nbits("bias", 4, "bias"),
    _nbits("zero points", 4, zeros="bytes"),
    _nbits("zero points of floats", 4, zeros="floats"),
    _nbits("eight bits", 8, zeros="bytes"),
    _nbits("two bits", 2),
    _nbits("blocks by column", 4, "order", zeros="bytes"),
]
