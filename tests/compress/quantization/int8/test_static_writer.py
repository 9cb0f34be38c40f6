"""Layers that stay float between int8 ones keep their weights in float, also on onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.graph.builder import OpBuilder
from onward.graph.protos import to_proto
from onward.sessions.inference import InferenceSession

ROWS = {"x": np.random.default_rng(0).normal(size=(32, 3, 12, 12)).astype(np.float32)}


def three_layers(second: str) -> ir.Model:
    """Convolutions, of which the second has channels of very different sizes."""
    op, random = OpBuilder(opset=18), np.random.default_rng(1)

    def layer(x: ir.Value, name: str, operator: str, inputs: int, spread: float) -> ir.Value:
        w = random.normal(size=(16, inputs, 3, 3)) / np.sqrt(9 * inputs)
        w *= np.exp(random.normal(size=(16, 1, 1, 1)) * spread)
        weight = op.initializer(name, w.astype(np.float32))
        return op.Relu(getattr(op, operator)(x, weight, pads=[1, 1, 1, 1]))

    x = op.input("x", "float32", ("batch", 3, 12, 12))
    hidden = layer(layer(x, "first", "Conv", 3, 0), "second", second, 16, 1.5)
    return op.model(y=op.GlobalAveragePool(layer(hidden, "third", "Conv", 16, 0)))


@pytest.mark.parametrize("second", ["Conv", "ConvTranspose"])
def test_a_float_layer_between_int8_layers_has_float_weights_on_stock_onnxruntime(
    second: str,
) -> None:
    model = three_layers(second)
    quantizer = Int8Quantizer(model, Calibration(ROWS, InferenceSession(model).get_inputs()))
    plan = {name: form for name, form in quantizer.plan.items() if name != "node_Conv_2"}
    assert len(plan) >= 2
    data = to_proto(quantizer.write(plan)).SerializeToString()
    outputs = [
        onnxruntime.InferenceSession(
            data, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
        ).run(None, ROWS)[0]
        for left_out in ([], ["WeightBiasQuantization"])
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-5)
