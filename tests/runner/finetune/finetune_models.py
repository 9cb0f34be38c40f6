"""Small models for the tests of fine-tuning."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

import onward

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def conv_net() -> ir.Model:
    """Conv, Gemm and MatMul: x (batch, 3, 6, 6) to y (batch, 2)."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 6, 6))
    w, b = op.initializer("conv.weight", random(4, 3, 3, 3)), op.initializer("conv.bias", random(4))
    h = op.Flatten(op.Relu(op.Conv(x, w, b, pads=[1, 1, 1, 1], strides=[2, 2])))
    w, b = op.initializer("fc.weight", random(5, 36) / 6), op.initializer("fc.bias", random(5))
    h = op.Tanh(op.Gemm(h, w, b, transB=1, alpha=0.5))
    return op.model(y=op.MatMul(h, op.initializer("out.weight", random(5, 2))))


def run(model: ir.Model, **feeds: Array) -> list[Array]:
    """The outputs of a model in plain onnxruntime."""
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    return list(session.run(None, feeds))


def difference(a: list[Array], b: list[Array]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))
