"""Layers that are fitted to their own float outputs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress import Calibration
from onward.compress.learned_rounding.fit_layers import fit_layers
from onward.compress.progress_steps import no_progress
from onward.sessions.inference import InferenceSession
from tests.compress.learned_rounding.small_models import Array, random, rounded, run, tensors


def correlated(*shape: int, seed: int) -> Array:
    """Data whose columns depend on each other: rounding errors can cancel out."""
    flat = random(shape[0], 6, seed=seed) @ random(6, int(np.prod(shape[1:])), seed=50)
    return np.asarray(flat.reshape(shape) + 0.1 * random(*shape, seed=seed + 1), np.float32)


def linear(kind: str) -> tuple[ir.Model, tuple[int, ...]]:
    op = onward.OpBuilder(opset=23)
    if kind == "Conv":
        x = op.input("x", "float32", ("batch", 3, 6, 6))
        w = op.initializer("w", random(4, 3, 3, 3, seed=1))
        return op.model(y=op.Conv(x, w, pads=[1, 1, 1, 1], strides=[2, 1])), (3, 6, 6)
    x = op.input("x", "float32", ("batch", 40))
    if kind == "MatMul":
        return op.model(y=op.MatMul(x, op.initializer("w", random(40, 8, seed=1)))), (40,)
    return op.model(y=op.Gemm(x, op.initializer("w", random(8, 40, seed=1)), transB=1)), (40,)


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Conv"])
def test_a_fitted_layer_is_nearer_to_its_float_output(kind: str, block: int) -> None:
    model, shape = linear(kind)
    quantized = rounded(model, 2, block)
    inputs = InferenceSession(model).get_inputs()
    data = Calibration({"x": correlated(128, *shape, seed=2)}, inputs, batch=32)
    fitted = fit_layers(quantized, model, data, progress=no_progress)
    unseen = correlated(64, *shape, seed=4)
    before, after = (
        ((run(m, unseen) - run(model, unseen)) ** 2).mean() for m in (quantized, fitted)
    )
    assert after < (0.8 if kind == "Conv" else 0.6) * before


def test_a_layer_without_its_float_weight_stays() -> None:
    model, _ = linear("MatMul")
    quantized = rounded(model)
    other, _ = linear("MatMul")
    other.graph.initializers["w"].const_value = ir.tensor(random(40, 8, seed=9), name="w")
    data = Calibration({"x": random(32, 40)}, InferenceSession(model).get_inputs())
    fitted = fit_layers(quantized, other, data, progress=no_progress)
    assert tensors(fitted) == tensors(quantized)
