"""Models as bytes for onnxruntime, with their larger weights separately."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.providers.options import SessionOptions
from onward.providers.ort.provider import serialize
from onward.providers.ort.session import create


def test_weight_that_is_a_transposed_view_is_loaded() -> None:
    array = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    op = OpBuilder()
    x, weight = op.input("x", "float32", ("batch", 40)), op.initializer("w", array.T)
    weight.const_value = ir.tensor(array.T, name="w")  # as folding a Transpose leaves it
    proto, outside = serialize(op.model(y=op.MatMul(x, weight)))
    session = create(proto, SessionOptions(), [("CPUExecutionProvider", {})], outside)
    feed = np.ones((2, 40), np.float32)
    [y] = session.run(None, {"x": feed})
    np.testing.assert_allclose(y, feed @ array.T, rtol=1e-5, atol=1e-5)
