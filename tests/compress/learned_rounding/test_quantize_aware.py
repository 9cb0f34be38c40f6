"""A model with fake quantization of few bits trains, and its export gives the same outputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress import export_quantized, quantize_aware
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import AdamW
from tests.compress.learned_rounding.small_models import X, mlp, random, run

FORMATS = [(8, 16, "INT8", 21), (4, 0, "INT4", 21), (4, 16, "INT4", 21), (2, 16, "INT2", 25)]


@pytest.mark.integration
@pytest.mark.parametrize(("bits", "block", "kind", "opset"), FORMATS)
def test_the_export_gives_what_was_trained(bits: int, block: int, kind: str, opset: int) -> None:
    aware = quantize_aware(mlp(), bits=bits, block=block)
    feeds = {"x": X[:32], "target": random(32, 5)}
    with onward.TrainingSession(aware.model, MSE(), AdamW(lr=1e-3)) as session:
        losses = [float(session.step(feeds)["loss"]) for _ in range(10)]
        expected = session.predict({"x": X})["y"]
        quantized = export_quantized(aware, session.parameters)
    assert min(losses) < losses[0]
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(run(quantized, X), expected, atol=0.02 * scale)
    kinds = [v.dtype for v in quantized.graph.initializers.values()]
    assert kinds.count(ir.DataType[kind]) == 3
    assert dict(quantized.opset_imports) == {"": opset}
    assert not quantized.functions


def test_int8_rounds_the_data_too() -> None:
    aware = quantize_aware(mlp(), {"x": X})
    kinds = [node.op_type for node in export_quantized(aware, {}).graph]
    assert kinds.count("QuantizeLinear") == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"bits": 3}, "bits must be 8, 4 or 2, not 3"), ({"block": 24}, "block must be 0 or a power")],
)
def test_formats_that_do_not_exist_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        quantize_aware(mlp(), **settings)


def test_a_matmul_that_onnxruntime_gets_wrong_in_2_bits_stays_float() -> None:
    op = onward.OpBuilder(opset=23)
    x = op.input("x", "float32", ("batch", 32))
    h = op.MatMul(x, op.initializer("w0", random(32, 16)))
    model = op.model(y=op.MatMul(h, op.initializer("w1", random(16, 7))))
    assert quantize_aware(model, bits=2).weights == ("w0",)
    assert quantize_aware(model, bits=4).weights == ("w0", "w1")
