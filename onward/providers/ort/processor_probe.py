"""Build the probe of `processors.py`: a blocked convolution, compared with a plain one."""

from __future__ import annotations

import functools

import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.passes.rewrite import rewrite
from onward.providers.ort.rewrites.blocked_convolutions import BLOCK, NCHWC, rule


@functools.cache
def processor_probe() -> bytes:
    """max |conv(x, w) - blocked_conv(x, w)|, the second written by the rule for real models."""
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", (1, 2 * BLOCK, 8, 8))
    w = op.input("w", "float32", (2 * BLOCK, 2 * BLOCK, 3, 3))
    plain = op.Conv(x, w, auto_pad="SAME_UPPER")  # which the rule leaves as it is
    blocked = op.Conv(x, w, pads=[1, 1, 1, 1])
    error = op.ReduceMax(op.Abs(op.Sub(plain, blocked)), keepdims=0)
    model = op.model(error=error)
    rewrite(model, rule)
    model.opset_imports[NCHWC] = 1
    data: bytes = ir.to_proto(model).SerializeToString()
    return data
