"""A small float model, data for it, and what it becomes when its weights are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

import onward
from onward.compress import Calibration, export_quantized, quantize_aware
from onward.compress.quality import Judge
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = random(192, 24, seed=5)


def mlp(opset: int = 23) -> ir.Model:
    """Two MatMul layers and a Gemm: 24 -> 40 -> 40 -> 5."""
    op = onward.OpBuilder(opset=opset)
    x = op.input("x", "float32", ("batch", 24))
    w = [random(24, 40, seed=1) / 5, random(40, 40, seed=2) / 6, random(5, 40, seed=3) / 6]
    h = op.Relu(op.MatMul(x, op.initializer("w0", w[0])))
    h = op.Relu(op.MatMul(h, op.initializer("w1", w[1])))
    y = op.Gemm(h, op.initializer("w2", w[2]), op.initializer("b2", random(5, seed=4)), transB=1)
    return op.model(y=y)


def rounded(model: ir.Model, bits: int = 2, block: int = 0) -> ir.Model:
    return export_quantized(quantize_aware(model, bits=bits, block=block), {})


def calibration(model: ir.Model, data: Any = None, **settings: Any) -> Calibration:
    given = {"x": X} if data is None else data
    return Calibration(given, InferenceSession(model).get_inputs(), **{"batch": 16} | settings)


def error(original: ir.Model, model: ir.Model) -> float:
    unseen = {"x": random(64, 24, seed=99)}
    return Judge(original, calibration(original, unseen)).rate(model).error


def run(model: ir.Model, x: Array) -> Array:
    found: Array = InferenceSession(model).run(None, {"x": x})[0]
    return found


def tensors(model: ir.Model) -> dict[str, bytes]:
    held = model.graph.initializers
    return {name: v.const_value.tobytes() for name, v in held.items() if v.const_value is not None}


def dequantizing_model(
    q: Array, scale: Array, zero: Array | None, dtype: ir.DataType, **attributes: int
) -> ir.Model:
    """y = x DequantizeLinear(q, scale, zero)"""
    op = onward.OpBuilder(opset=25)
    x = op.input("x", "float32", ("batch", q.shape[0]))
    given = [op.initializer("q", ir.tensor(q.astype(dtype.numpy()), dtype=dtype, name="q"))]
    given.append(op.initializer("s", scale.astype(np.float32)))
    if zero is not None:
        given.append(
            op.initializer("z", ir.tensor(zero.astype(dtype.numpy()), dtype=dtype, name="z"))
        )
    w = op.DequantizeLinear(*given, **attributes)
    w.shape, w.type = ir.Shape(q.shape), ir.TensorType(ir.DataType.FLOAT)
    return op.model(y=op.MatMul(x, w))
