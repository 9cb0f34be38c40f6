"""AWQ: inputs of very different sizes; the factors are folded into what computes the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.weights.awq import choose_factors
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.compress.quantization.weights.scales import round_weights
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
SIZE = 96


def weight(name: str, *shape: int) -> Array:
    rng = np.random.default_rng(len(name) + sum(shape))
    return rng.standard_t(4, size=shape).astype(np.float32) * np.float32(0.1)


def outliers() -> Array:
    """The sizes of inputs: a few are much larger than the rest."""
    sizes = np.random.default_rng(3).uniform(0.2, 1.0, SIZE)
    sizes[::17] *= 30
    return sizes.astype(np.float32)


def model_of(kind: str) -> ir.Model:
    """Two products of one value, which a layer norm, an RMS norm, or nothing computes."""
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", SIZE))
    h = x
    if kind == "norm":
        h = op.LayerNormalization(
            x, op.initializer("s", outliers()), op.initializer("b", weight("b", SIZE))
        )
    elif kind == "rms":
        squares = op.ReduceMean(op.Mul(x, x), np.array([-1]), keepdims=1)
        h = op.Mul(op.Div(x, op.Sqrt(squares)), op.initializer("s", outliers()))
    elif kind == "linear":
        h = op.Add(
            op.MatMul(x, op.initializer("v", weight("v", SIZE, SIZE) * outliers())),
            op.initializer("b", outliers()),
        )
    y = op.MatMul(h, op.initializer("w1", weight("w1", SIZE, 64)))
    z = op.MatMul(h, op.initializer("w2", weight("w2", SIZE, 32)))
    return op.model(y=y, z=z)


def feeds(kind: str) -> dict[str, Array]:
    x = np.random.default_rng(0).normal(size=(256, SIZE)).astype(np.float32)
    return {"x": x * outliers() if kind == "input" else x}


def lost(kind: str, method: str) -> tuple[float, ir.Model]:
    """The relative error of the outputs, and the written model."""
    model, data = model_of(kind), feeds(kind)
    expected = InferenceSession(model).run(None, data)
    inputs = InferenceSession(model).get_inputs()
    quantizer = WeightQuantizer(model, Calibration([data], inputs), method=method)
    written = quantizer.write(quantizer.plan)
    found = InferenceSession(written).run(None, data)
    errors = [np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in zip(expected, found)]
    return float(max(errors)), written


@pytest.mark.parametrize("kind", ["norm", "rms", "input", "linear"])
def test_inputs_of_different_sizes_lose_less_than_with_rtn(kind: str) -> None:
    by_awq, written = lost(kind, "awq")
    assert by_awq < 0.95 * lost(kind, "rtn")[0]
    added = sum(str(node.name).endswith("/divide") for node in written.graph)
    assert added == {"norm": 0, "rms": 0, "input": 1, "linear": 1}[kind]


def test_a_part_of_the_readers_gets_a_product_of_its_own() -> None:
    model, data = model_of("norm"), feeds("norm")
    [expected, other] = InferenceSession(model).run(None, data)
    calibration = Calibration([data], InferenceSession(model).get_inputs())
    quantizer = WeightQuantizer(model, calibration, method="awq")
    first = next(iter(quantizer.plan))
    assert quantizer.plan[first].method == "awq"
    written = quantizer.write({first: quantizer.plan[first]})
    [y, z] = InferenceSession(written).run(None, data)
    assert np.allclose(z, other, atol=1e-4)
    assert 1e-3 < np.linalg.norm(y - expected) / np.linalg.norm(expected) < 0.2
    assert sum(str(node.name).endswith("/divide") for node in written.graph) == 1


def test_the_error_of_a_layer_is_less_with_the_factors() -> None:
    w = weight("w", 64, SIZE)
    x = (np.random.default_rng(1).normal(size=(500, SIZE)) * outliers()).astype(np.float32)
    factors = choose_factors([w], x.T @ x, 4, 32, "symmetric")
    assert factors is not None
    rounded = round_weights(w * factors, 4, 32, "symmetric", search=False).widen() / factors
    nearest = round_weights(w, 4, 32, "symmetric", search=False).widen()
    assert np.linalg.norm(x @ (rounded - w).T) < 0.9 * np.linalg.norm(x @ (nearest - w).T)


def test_inputs_that_are_always_0_have_no_factors() -> None:
    w = weight("w", 64, SIZE)
    assert choose_factors([w], np.zeros((SIZE, SIZE), np.float32), 4, 32, "symmetric") is None
