"""Weights that no engine takes in few bits stay as they are, and the report says why."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress import quantize
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.graph.builder import OpBuilder

RNG = np.random.default_rng(0)


def experts() -> ir.Model:
    """A product with a matrix, one with a matrix for each expert, and a transposed convolution."""
    op = OpBuilder(opset=18)

    def weight(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, (RNG.normal(size=shape) / 8).astype(np.float32))

    x = op.input("x", "float32", (4, "rows", 64))
    y = op.MatMul(op.MatMul(x, weight("matrix", 64, 64)), weight("experts", 4, 64, 64))
    image = op.Reshape(y, np.array([4, 64, -1, 1]))
    return op.model(y=op.ConvTranspose(image, weight("kernel", 64, 32, 1, 1)))


def test_weights_of_several_matrices_are_named() -> None:
    quantizer = WeightQuantizer(experts(), None)
    assert list(quantizer.plan) == ["node_MatMul_0"]
    assert "several matrices" in quantizer.refused["node_MatMul_1"]
    assert "not of ConvTranspose" in quantizer.refused["node_ConvTranspose_3"]


def test_the_report_says_how_much_stays_float() -> None:
    rows = {"x": RNG.normal(size=(4, 8, 64)).astype(np.float32)}
    report = quantize(experts(), [rows], to="int4", drop="5%", memory=False)
    assert any(
        "73% of the weights stay as they are: its weight is several matrices" in each
        for each in report.notes
    ), report.notes
