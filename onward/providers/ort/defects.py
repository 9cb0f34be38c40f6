"""Where stock onnxruntime departs from the ONNX standard (1.31, CPU), found by ONNX's own tests.

When the user names no providers and torch is there, such a node goes to torch. Each row is held by
a test that fails when onnxruntime mends it, so that the row can go.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

if TYPE_CHECKING:  # `adds_in_half` alone must not cost the import
    import onnx_ir as ir

# y = a b in float16, (1, 4096) by (4096, 1), as bytes: a model that costs no import.
_HALF_PRODUCT = (
    b'\x08\x07\x12\x00:W\n\x11\n\x01a\n\x01b\x12\x01y"\x06MatMul\x12\x01gZ\x14\n\x01a\x12\x0f\n\r'
    b"\x08\n\x12\t\n\x02\x08\x01\n\x03\x08\x80 Z\x14\n\x01b\x12\x0f\n\r\x08\n\x12\t\n\x03\x08\x80 "
    b"\n\x02\x08\x01b\x13\n\x01y\x12\x0e\n\x0c\x08\n\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\r"
)


def defect(node: ir.Node) -> str | None:
    """What onnxruntime gets wrong about this node, or None."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("DFT", "STFT"):
        return "summed naively in float32: slow, and errors of 1e-6 of the largest element"
    if node.op_type == "MaxUnpool" and len(node.inputs) > 2:
        return "the indices are not converted to the given output shape"
    if node.op_type == "Resize":
        mode = node.attributes.get("coordinate_transformation_mode")
        scales = node.inputs[2] if len(node.inputs) > 2 else None
        if mode is not None and mode.value == "align_corners" and scales is not None:
            return "align_corners with scales rounds the output size before it maps coordinates"
    if node.op_type == "Attention" and len(node.outputs) > 3 and node.outputs[3].name:
        return "the fourth output leaves out part of the mask"
    if node.op_type == "Dropout" and "seed" in node.attributes and len(node.inputs) > 2:
        return "a seeded mask is another one in every run"
    if node.op_type == "Scan" and "body" in node.attributes:
        body = node.attributes["body"].as_graph()
        if any(value.is_graph_input() for value in body.outputs):
            return "an input that the body returns as it came is not copied: the result is garbage"
    return None


@functools.cache
def adds_in_half() -> bool:
    """Whether this onnxruntime adds float16 products up in float16, where 2048 + 1 is 2048.

    It does on ARM CPUs with half-precision arithmetic: 8 to 40 times the error of rounding the
    sum. One tiny product tells.
    """
    ones = np.ones((1, 4096), np.float16)
    session = onnxruntime.InferenceSession(_HALF_PRODUCT, providers=["CPUExecutionProvider"])
    (sum_,) = session.run(None, {"a": ones, "b": ones.T})
    return float(sum_[0, 0]) != 4096.0
