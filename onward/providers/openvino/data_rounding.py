"""Which models' data OpenVINO may round to 8 bits: that of products with weights of 4 bits.

onnxruntime rounds it by itself: next to the error of such weights that of the data is small, and
products of integers are faster than weights that are widened first.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.rewrite import nodes_of
from onward.passes.value_facts import attribute

ROUNDED_TOGETHER = 32  # numbers of a row of data that share a scale
_SMALL = (ir.DataType.INT4, ir.DataType.UINT4)


def has_small_weights(model: ir.Model) -> bool:
    """Whether a model has products with weights of 4 bits, in blocks."""
    return any(map(_reads_small_weight, nodes_of(model)))


def _reads_small_weight(node: ir.Node) -> bool:
    if node.domain == "com.microsoft" and node.op_type == "MatMulNBits":
        return bool(attribute(node, "bits", 4) == 4)
    codes = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    is_small = codes is not None and codes.dtype in _SMALL
    return is_small and bool(attribute(node, "block_size", 0))
