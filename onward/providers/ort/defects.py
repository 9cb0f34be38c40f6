"""Where stock onnxruntime departs from the ONNX standard (1.31, CPU), found by ONNX's own tests.

When the user names no providers and torch is there, such a node goes to torch. Each row is held by a test that
fails when onnxruntime mends it, so that the row can go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the words alone must not cost the import
    import onnx_ir as ir

# What a serialised model must mention before it is worth a look.
WORDS = (b"DFT", b"STFT", b"MaxUnpool", b"align_corners", b"Attention")


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
    if node.op_type == "Attention" and _is_half(node):
        return "computed in float16 throughout: 8 to 40 times the error of rounding the result"
    return None


def _is_half(node: ir.Node) -> bool:
    return any(value is not None and str(value.dtype) == "FLOAT16" for value in node.inputs)
