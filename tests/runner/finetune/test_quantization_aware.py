"""Quantization-aware training: it rounds as the exported model does, and it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError, UnsupportedModel
from onward.graph.int8_weights import CUT_OFF_FREE
from onward.losses import MSE
from onward.optimizers import AdamW
from onward.runner.finetune.quantization_aware import export_quantized, make_quantization_aware
from tests.runner.finetune.finetune_models import conv_net, difference, random, run

WEIGHTS = ("conv.weight", "fc.weight", "out.weight")
X = random(16, 3, 6, 6)


def tensor(model: ir.Model, name: str) -> Any:
    value = model.graph.initializers[name].const_value
    assert value is not None
    return value.numpy()


def test_a_model_trains_with_the_rounding_of_its_export() -> None:
    aware = make_quantization_aware(conv_net(), [{"x": X[:8]}, {"x": X[8:]}])
    assert aware.weights == WEIGHTS and len(aware.scales) == 6
    error = difference(run(aware.model, x=X), run(conv_net(), x=X))
    assert 1e-4 < error < 0.3
    options = onward.TrainingOptions(frozen=aware.scales)
    session = onward.TrainingSession(aware.model, MSE(), AdamW(lr=0.01), options)
    assert not set(aware.scales) & set(session.parameters)
    feeds = {"x": X, "target": random(16, 2, seed=1)}
    losses = [float(session.step(feeds)["loss"]) for _ in range(25)]
    assert losses[-1] < losses[0] / 2
    quantized = export_quantized(aware, session.parameters)
    assert difference(run(quantized, x=X), [session.predict({"x": X})["y"]]) < 1e-4
    for name in WEIGHTS:
        assert name not in quantized.graph.initializers
        assert tensor(quantized, f"{name}.int8").dtype == np.int8
    kinds = [node.op_type for node in quantized.graph]
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (3, 6)


def test_scales_are_the_range_of_the_data_and_of_each_output() -> None:
    aware = make_quantization_aware(conv_net(), [{"x": X}])
    step = (max(X.max(), 0) - min(X.min(), 0)) / 255
    np.testing.assert_allclose(tensor(aware.model, "x.scale"), step, rtol=1e-5)
    weight = tensor(conv_net(), "conv.weight")
    scales = tensor(aware.model, "conv.weight.scale")
    np.testing.assert_allclose(scales, np.abs(weight).max((1, 2, 3)) / CUT_OFF_FREE, rtol=1e-6)
    weight = tensor(conv_net(), "out.weight")
    scales = tensor(aware.model, "out.weight.scale")
    np.testing.assert_allclose(scales, np.abs(weight).max(0) / CUT_OFF_FREE, rtol=1e-6)


def test_scales_can_be_learned() -> None:
    aware = make_quantization_aware(conv_net(), [{"x": X}], ["fc.*"])
    options = onward.TrainingOptions(trainable=aware.scales)
    session = onward.TrainingSession(aware.model, MSE(), AdamW(lr=1e-5), options)
    feeds = {"x": X, "target": run(conv_net(), x=X)[0]}
    losses = [float(session.step(feeds)["loss"]) for _ in range(20)]
    assert min(losses) < losses[0]


def test_a_weight_that_others_read_stays_as_it_is() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", random(7, 4))
    h = op.Gather(w, op.input("i", "int64", ("batch",)))
    model = op.model(y=op.MatMul(h, op.Transpose(w, perm=[1, 0])))
    with pytest.raises(OptionError, match="no layer that matches can be quantized"):
        make_quantization_aware(model, [{"i": np.array([0, 1])}])


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(OptionError, match="calibration is empty\ngive some batches"):
        make_quantization_aware(conv_net(), [])
    with pytest.raises(OptionError, match=r"'fc\.wieght' matches no linear layer"):
        make_quantization_aware(conv_net(), [{"x": X}], ["fc.wieght"])
    op = onward.OpBuilder(opset=11)
    w = op.initializer("w", random(4, 3))
    model = op.model(y=op.MatMul(op.input("x", "float32", (1, 4)), w))
    with pytest.raises(UnsupportedModel, match="opset 11, which cannot quantize by channel\nexp"):
        make_quantization_aware(model, [{"x": random(1, 4)}])
