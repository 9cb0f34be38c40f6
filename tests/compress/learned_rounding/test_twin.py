"""The twin of a quantized model: the same outputs, and the same file back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress.learned_rounding.twin import make_twin
from onward.losses import MSE
from onward.optimizers import SGD
from tests.compress.learned_rounding.small_models import (
    X,
    dequantizing_model,
    mlp,
    random,
    rounded,
    run,
    tensors,
)

RNG = np.random.default_rng(0)
FORMATS = {
    "int8 per tensor": (ir.DataType.INT8, (), None, {}),
    "int8 per channel": (ir.DataType.INT8, (6,), None, {"axis": 1}),
    "uint8 with zero points": (ir.DataType.UINT8, (6,), 128, {"axis": 1}),
    "int4 in blocks": (ir.DataType.INT4, (2, 6), None, {"axis": 0, "block_size": 16}),
    "uint4 in blocks": (ir.DataType.UINT4, (2, 6), 7, {"axis": 0, "block_size": 16}),
    "int4, a smaller last block": (ir.DataType.INT4, (2, 6), None, {"axis": 0, "block_size": 20}),
    "int2 in blocks": (ir.DataType.INT2, (2, 6), None, {"axis": 0, "block_size": 16}),
    "uint2 per channel": (ir.DataType.UINT2, (6,), 2, {"axis": 1}),
}


def model_of(name: str) -> ir.Model:
    dtype, shape, zero, attributes = FORMATS[name]
    low = 0 if "UINT" in dtype.name else -(1 << dtype.bitwidth - 1)
    q = RNG.integers(low, low + (1 << dtype.bitwidth), (32, 6))
    zeros = None if zero is None else np.full(shape, zero)
    return dequantizing_model(q, RNG.uniform(0.1, 1, shape), zeros, dtype, **attributes)


@pytest.mark.parametrize("name", FORMATS)
def test_a_twin_gives_the_outputs_of_the_quantized_model(name: str) -> None:
    quantized, x = model_of(name), random(4, 32)
    twin = make_twin(quantized)
    weight = next(iter(twin.weights.values()))
    expected = x @ weight.dequantized()
    np.testing.assert_allclose(run(twin.model, x), expected, rtol=1e-4, atol=1e-3)
    held = {n: v.const_value.numpy() for n, v in twin.model.graph.initializers.items()}
    back = twin.to_quantized(held)
    assert tensors(back) == tensors(quantized)


@pytest.mark.parametrize("name", FORMATS)
def test_integers_and_scales_have_gradients(name: str) -> None:
    twin, x = make_twin(model_of(name)), random(8, 32)
    options = onward.TrainingOptions(trainable=twin.parameters)
    with onward.TrainingSession(twin.model, MSE(), SGD(lr=0.01), options) as session:
        session.run_forward({"x": x, "target": random(8, 6, seed=1)})
        session.run_backward()
        found = session.get_gradients()
    assert set(found) == set(twin.parameters)
    assert all(np.abs(gradient).max() > 0 for gradient in found.values())


def test_the_scale_of_a_twin_has_the_exact_gradient() -> None:
    twin, x = make_twin(model_of("int4 in blocks")), random(8, 32)
    target = random(8, 6, seed=1)
    [factor] = set(twin.factors.values())
    [weight] = twin.weights.values()
    with onward.TrainingSession(
        twin.model, MSE(), SGD(lr=0.01), {"trainable": [factor]}
    ) as session:
        session.run_forward({"x": x, "target": target})
        session.run_backward()
        found = session.get_gradients()[factor]
    w = weight.dequantized()
    dw = x.T @ (2 * (x @ w - target) / target.size)
    np.testing.assert_allclose(found, (dw * w).reshape(2, 16, 6).sum(1), rtol=1e-3, atol=1e-4)


def test_a_float_weight_leans_to_its_side_and_rounds_to_the_stored_integer() -> None:
    original = mlp()
    quantized = rounded(original)
    twin = make_twin(quantized, original)
    assert len(twin.weights) == 3
    for name, weight in twin.weights.items():
        start = twin.model.graph.initializers[name].const_value
        assert start is not None
        np.testing.assert_array_equal(weight.grid.to_integers(start.numpy()), weight.integers())
        assert np.abs(start.numpy() - weight.integers()).max() > 0.1
    np.testing.assert_allclose(run(twin.model, X), run(quantized, X), rtol=1e-3, atol=1e-3)


def quantized_data(bias: bool = False) -> ir.Model:
    """int8 data and weights, an int32 bias whose scale is the product of theirs."""
    op = onward.OpBuilder(opset=21)
    x = op.input("x", "float32", ("batch", 32))
    scale, zero = op.initializer("xs", np.float32(0.05)), op.initializer("xz", np.uint8(128))
    steps = op.QuantizeLinear(x, scale, zero)
    data = op.DequantizeLinear(steps, op.initializer("xs2", np.float32(0.05)), zero)
    q = op.initializer("q", RNG.integers(-127, 128, (32, 6)).astype(np.int8))
    w = op.DequantizeLinear(q, op.initializer("ws", np.full(6, 0.01, np.float32)), axis=1)
    b = op.DequantizeLinear(
        op.initializer("b", np.arange(6, dtype=np.int32) * 1000),
        op.initializer("bs", np.full(6, 0.05 * 0.01, np.float32)),
        axis=0,
    )
    return op.model(y=op.Gemm(data, w, b))


def test_scales_of_data_train_together_and_biases_follow() -> None:
    quantized = quantized_data()
    twin = make_twin(quantized)
    assert set(twin.factors) == {"xs", "xs2", "ws"}
    assert twin.factors["xs"] == twin.factors["xs2"]
    held = {n: v.const_value.numpy() for n, v in twin.model.graph.initializers.items()}
    changed = {**held, twin.factors["xs"]: np.float32(2.0)}
    back = twin.to_quantized(changed)
    arrays = {n: v.const_value.numpy() for n, v in back.graph.initializers.items()}
    assert arrays["xs"] == arrays["xs2"] == np.float32(0.1)
    np.testing.assert_allclose(arrays["bs"], 0.1 * 0.01, rtol=1e-6)
    np.testing.assert_array_equal(arrays["b"], np.arange(6) * 500)
