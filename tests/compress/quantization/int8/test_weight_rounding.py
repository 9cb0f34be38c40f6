"""Rounding of weights: the outputs of a layer err less than with the nearest numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.int8_layers import find_layers
from onward.compress.quantization.int8.prepare import prepare
from onward.compress.quantization.int8.weight_rounding import (
    Rounded,
    measure_moments,
    round_layers,
)
from onward.compress.quantization.int8.weight_scales import channel_scales, dequantize, round_weight
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def alike(*shape: int) -> Array:
    """Data whose channels (axis 1, or the last one) depend on each other, around a mean of 1."""
    axis = 1 if len(shape) > 2 else -1
    own = RNG.normal(size=shape) * 0.2 + RNG.normal(size=shape).mean(axis, keepdims=True) * 4 + 1
    return own.astype(np.float32)


def layer_model(kind: str) -> tuple[ir.Model, Array]:
    """One layer, and its data."""
    op = OpBuilder(18)

    def weight(*shape: int) -> ir.Value:
        return op.initializer("w", RNG.normal(size=shape).astype(np.float32))

    if kind in ("matmul", "gemm"):
        x = op.input("x", "float32", ("rows", 24))
        bias = op.initializer("b", np.zeros(16, np.float32))
        if kind == "matmul":
            return op.model(y=op.Add(op.MatMul(x, weight(24, 16)), bias)), alike(64, 24)
        return op.model(y=op.Gemm(x, weight(16, 24), bias, transB=1)), alike(64, 24)
    groups = {"dense": 1, "strided": 1, "pointwise": 1, "depthwise": 8, "grouped": 2}[kind]
    size = 1 if kind == "pointwise" else 3
    x = op.input("x", "float32", ("batch", 8, 9, 9))
    pads, step = [size // 2] * 4, 2 if kind == "strided" else 1
    w = weight(16, 8 // groups, size, size)
    y = op.Conv(x, w, group=groups, pads=pads, strides=[step, step])
    return op.model(y=y), alike(2, 8, 9, 9)


KINDS = ("matmul", "gemm", "dense", "strided", "pointwise", "depthwise", "grouped")


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_err_less_than_with_the_nearest_numbers(kind: str) -> None:
    source, x = layer_model(kind)
    model = prepare(source)
    layers, _ = find_layers(model)
    data = Calibration([{"x": x}], InferenceSession(model).get_inputs())
    ((name, rounded),) = round_layers(model, layers, data)
    layer = layers[name]
    w = np.asarray(model.graph.initializers[layer.weight].const_value.numpy())  # type: ignore[union-attr]
    scales = channel_scales(w, layer.channel_axis)
    nearest = Rounded(round_weight(w, scales, layer.channel_axis), scales, np.zeros(16))

    def outputs(each: Rounded | None) -> Array:
        changed = model.clone()
        if each is not None:
            restored = dequantize(each.weight, each.scales, layer.channel_axis)
            changed.graph.initializers[layer.weight].const_value = ir.tensor(restored)
        y = InferenceSession(changed).run(None, {"x": x})[0]
        shape = [1, -1] + [1] * (y.ndim - 2)
        return y + (0.0 if each is None else each.correction.reshape(shape))

    exact = outputs(None)
    before, after = (float(((outputs(e) - exact) ** 2).sum()) for e in (nearest, rounded))
    assert rounded.weight.shape == w.shape and rounded.weight.dtype == np.int8
    assert after < 0.8 * before


def test_moments_are_those_of_all_batches() -> None:
    source, _ = layer_model("matmul")
    model = prepare(source)
    layers, _ = find_layers(model)
    parts = [alike(5, 24), alike(30, 24) + 3]
    data = Calibration([{"x": part} for part in parts], InferenceSession(model).get_inputs())
    (found,) = measure_moments(model, list(layers.values()), data).values()
    rows = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(found.mean[0], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.covariance[0], np.cov(rows.T, bias=True), atol=1e-4)


def test_channels_that_are_always_zero_do_no_harm() -> None:
    source, x = layer_model("matmul")
    x[:, 3] = 0
    model = prepare(source)
    data = Calibration([{"x": x}], InferenceSession(model).get_inputs())
    ((_, rounded),) = round_layers(model, find_layers(model)[0], data)
    assert np.isfinite(rounded.correction).all() and np.abs(rounded.weight).max() <= 127
