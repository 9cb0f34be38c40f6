"""Defects of stock onnxruntime's CPU provider: operators that differ from the ONNX standard.

If the user names no providers and torch is installed, such nodes run in torch. Each row has a test
that fails when onnxruntime fixes the defect, so that the row can be removed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from onward.graph.operators import PRODUCTS
from onward.providers.defect import Defect, Platform, architecture
from onward.providers.ort.shared_threads import are_threads_shared

if TYPE_CHECKING:  # `operators_in_half` must not import onnx-ir
    import onnx_ir as ir

HERE = Platform(onnxruntime.__version__, architecture())
_SEEN_IN = "1.30"
_DOUBLE = 11  # ONNX's number of float64
# y = a b in float16, (1, 4096) by (4096, 1), as bytes: the model is built without importing onnx.
_HALF_PRODUCT = (
    b'\x08\x07\x12\x00:W\n\x11\n\x01a\n\x01b\x12\x01y"\x06MatMul\x12\x01gZ\x14\n\x01a\x12\x0f\n\r'
    b"\x08\n\x12\t\n\x02\x08\x01\n\x03\x08\x80 Z\x14\n\x01b\x12\x0f\n\r\x08\n\x12\t\n\x03\x08\x80 "
    b"\n\x02\x08\x01b\x13\n\x01y\x12\x0e\n\x0c\x08\n\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\r"
)
# y = Attention(q, k, v) in float16 with a scale of 1: one query, two keys, values of one number.
_HALF_ATTENTION = (
    b'\x08\n\x12\x00:\xa1\x01\n(\n\x01q\n\x01k\n\x01v\x12\x01y"\tAttention*\x0f\n\x05scale'
    b"\x15\x00\x00\x80?\xa0\x01\x01\x12\x01gZ\x1b\n\x01q\x12\x16\n\x14\x08\n\x12\x10\n\x02\x08\x01"
    b"\n\x02\x08\x01\n\x02\x08\x01\n\x02\x08\x02Z\x1b\n\x01k\x12\x16\n\x14\x08\n\x12\x10\n\x02\x08\x01"
    b"\n\x02\x08\x01\n\x02\x08\x02\n\x02\x08\x02Z\x1b\n\x01v\x12\x16\n\x14\x08\n\x12\x10\n\x02\x08\x01"
    b"\n\x02\x08\x01\n\x02\x08\x02\n\x02\x08\x01b\x1b\n\x01y\x12\x16\n\x14\x08\n\x12\x10\n\x02\x08\x01"
    b"\n\x02\x08\x01\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\x17"
)
_SUMS = (PRODUCTS - {"DeformConv"}) | {"Softmax"}


def defect(node: ir.Node, place: Platform = HERE) -> str | None:
    """The known defect of onnxruntime that affects this node, or None. Types must be inferred."""
    if node.domain not in ("", "ai.onnx"):
        return None
    for row in ROWS:
        if row.subject == node.op_type and row.holds(place) and row.when(node):
            return row.reason
    return None


def _has_input(node: ir.Node, number: int) -> bool:
    return len(node.inputs) > number and node.inputs[number] is not None


def _aligns_corners_by_scales(node: ir.Node) -> bool:
    mode = node.attributes.get("coordinate_transformation_mode")
    return mode is not None and mode.value == "align_corners" and _has_input(node, 2)


def _is_double(node: ir.Node) -> bool:
    first = node.inputs[0] if node.inputs else None
    return first is not None and first.dtype is not None and int(first.dtype) == _DOUBLE


def _returns_input(node: ir.Node) -> bool:
    body = node.attributes.get("body")
    return body is not None and any(value.is_graph_input() for value in body.as_graph().outputs)


ROWS = tuple(
    Defect(operator, "onnxruntime", reason, _SEEN_IN, when=when)
    for operator, reason, when in (
        *(
            (
                operator,
                "summed naively in float32: slow, and errors of 1e-6 of the largest element",
                lambda node: True,
            )
            for operator in ("DFT", "STFT")
        ),
        (
            "MaxUnpool",
            "the indices are not converted to the given output shape",
            lambda node: len(node.inputs) > 2,
        ),
        (
            "Resize",
            "align_corners with scales rounds the output size before it maps coordinates",
            _aligns_corners_by_scales,
        ),
        (
            "Attention",
            "the fourth output leaves out part of the mask",
            lambda node: len(node.outputs) > 3 and bool(node.outputs[3].name),
        ),
        (
            "Attention",
            "float64 is scaled in float32, rows without keys are NaN, and counted keys are not "
            "those of is_causal",
            _is_double,
        ),
        (
            "Dropout",
            "a seeded mask differs from run to run",
            lambda node: "seed" in node.attributes and len(node.inputs) > 2,
        ),
        (
            "Scan",
            "an input that the body returns unchanged is not copied: the result is garbage",
            _returns_input,
        ),
    )
)


@functools.cache
def operators_in_half() -> frozenset[str]:
    """The operators whose sums this onnxruntime keeps in float16, where 2048 + 1 is 2048.

    Two tiny models are run to find out, as it depends on the processor's kernels: ARM CPUs with
    half-precision arithmetic sum products in it (8 to 40 times the error of rounding the sum),
    and attention's scores are float16 on others, too.
    """
    found = _SUMS if _adds_in_half() else frozenset()
    return found | {"Attention"} if _scores_in_half() else found


def _adds_in_half() -> bool:
    """Whether a matrix product that sums 4,096 ones does not give 4,096."""
    ones = np.ones((1, 4096), np.float16)
    return float(_run(_HALF_PRODUCT, a=ones, b=ones.T)[0, 0]) != 4096.0


def _scores_in_half() -> bool:
    """Whether scores of 2048 and 2049 get equal weights: 0.5 each instead of 0.27 and 0.73."""
    q = np.array([2048, 1], np.float16).reshape(1, 1, 1, 2)
    k = np.array([[1, 0], [1, 1]], np.float16).reshape(1, 1, 2, 2)
    v = np.array([0, 1], np.float16).reshape(1, 1, 2, 1)
    return float(_run(_HALF_ATTENTION, q=q, k=k, v=v).item()) < 0.7


def _run(model: bytes, **feeds: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.use_per_session_threads = not are_threads_shared()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result
