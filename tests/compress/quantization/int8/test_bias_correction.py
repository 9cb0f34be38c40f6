"""Bias correction: what rounded weights add to the mean of each output is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.bias_correction import apply_corrections
from onward.compress.quantization.int8.int8_layers import find_layers
from onward.compress.quantization.int8.prepare import prepare
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.compress.quantization.int8.weight_rounding import round_layers
from onward.compress.quantization.int8.weight_scales import dequantize
from onward.graph.builder import OpBuilder
from onward.passes.rewrite import Names
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
OUTPUTS = 12


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def make_layer(kind: str) -> tuple[ir.Model, tuple[int, ...], int]:
    """A model of one layer, the shape of its data, and the axis of its outputs' channels."""
    op = OpBuilder(18)
    bias = op.initializer("b", normal(OUTPUTS, seed=1))
    if kind.startswith("conv") or kind == "depthwise":
        groups = OUTPUTS if kind == "depthwise" else 1
        channels = OUTPUTS if kind == "depthwise" else 5
        x = op.input("x", "float32", ("batch", channels, 7, 7))
        w = op.initializer("w", normal(OUTPUTS, channels // groups, 3, 3))
        given = [] if kind in ("conv_no_bias", "depthwise") else [bias]
        y = op.Conv(x, w, *given, group=groups, pads=[1, 1, 1, 1], strides=[2, 2])
        return op.model(y=y), (2, channels, 7, 7), 1
    if kind == "matmul_add":
        x = op.input("x", "float32", ("batch", 3, 20))
        y = op.Add(bias, op.MatMul(x, op.initializer("w", normal(20, OUTPUTS))))
        return op.model(y=y), (2, 3, 20), 2
    x = op.input("x", "float32", ("batch", 20))
    if kind == "gemm":
        return op.model(y=op.Gemm(x, op.initializer("w", normal(20, OUTPUTS)), bias)), (6, 20), 1
    w = op.initializer("w", normal(OUTPUTS, 20))
    given = [] if kind == "transposed_gemm_no_bias" else [bias]
    return op.model(y=op.Gemm(x, w, *given, transB=1)), (6, 20), 1


KINDS = (
    *("gemm", "transposed_gemm", "transposed_gemm_no_bias", "matmul_add"),
    *("conv", "conv_no_bias", "depthwise"),
)


def batches(shape: tuple[int, ...]) -> list[dict[str, Array]]:
    """Data with a mean that is not 0: with 0, rounded weights would not move the mean."""
    return [{"x": normal(*shape, seed=seed) + 2} for seed in range(3)]


def channel_means(model: ir.Model, feeds: list[dict[str, Array]], axis: int) -> Array:
    """The mean of each channel of the output over all batches, in float64."""
    session = InferenceSession(model)
    y = np.concatenate([session.run(None, each)[0] for each in feeds]).astype(np.float64)
    return y.mean(axis=tuple(a for a in range(y.ndim) if a != axis))


@pytest.mark.parametrize("outside", [False, True], ids=["one_file", "second_file"])
@pytest.mark.parametrize("kind", KINDS)
def test_mean_of_outputs_is_as_before(kind: str, outside: bool, tmp_path: Path) -> None:
    source: Any
    source, shape, axis = make_layer(kind)
    if outside:
        ir.save(source, tmp_path / "m.onnx", external_data="m.data")
        source = tmp_path / "m.onnx"
    model, feeds = prepare(source), batches(shape)
    exact = channel_means(model, feeds, axis)
    layers, _ = find_layers(model)
    data = Calibration(feeds, InferenceSession(model).get_inputs())
    ((name, rounded),) = round_layers(model, layers, data)
    layer = layers[name]
    restored = dequantize(rounded.weight, rounded.scales, layer.channel_axis)
    model.graph.initializers[layer.weight].const_value = ir.tensor(restored, name=layer.weight)
    moved = channel_means(model, feeds, axis) - exact
    np.testing.assert_allclose(rounded.correction, -moved, atol=1e-5)
    assert np.abs(moved).max() > 1e-3

    apply_corrections(model, layers, {name: rounded.correction}, Names(model))
    np.testing.assert_allclose(channel_means(model, feeds, axis), exact, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_correction_is_added_to_each_channel(kind: str) -> None:
    source, shape, axis = make_layer(kind)
    model = prepare(source)
    (feeds, *_) = batches(shape)
    before = InferenceSession(model).run(None, feeds)[0]
    layers, _ = find_layers(model)
    correction = np.arange(OUTPUTS, dtype=np.float64)
    apply_corrections(model, layers, dict.fromkeys(layers, correction), Names(model))
    after = InferenceSession(model).run(None, feeds)[0]
    expected = correction.reshape([-1 if a == axis else 1 for a in range(before.ndim)])
    np.testing.assert_allclose(after, before + expected, atol=1e-4)


def test_bias_that_another_layer_reads_stays() -> None:
    op = OpBuilder(18)
    x, b = op.input("x", "float32", ("batch", 20)), op.initializer("b", normal(OUTPUTS))
    y, z = (op.Gemm(x, op.initializer(f"w{n}", normal(20, OUTPUTS, seed=n)), b) for n in (1, 2))
    model = prepare(op.model(y=y, z=z))
    feeds = {"x": normal(4, 20)}
    before = InferenceSession(model).run(None, feeds)
    layers, _ = find_layers(model)
    first = next(name for name, layer in layers.items() if layer.weight == "w1")
    apply_corrections(model, layers, {first: np.ones(OUTPUTS)}, Names(model))
    after = InferenceSession(model).run(None, feeds)
    np.testing.assert_allclose(after[0], before[0] + 1, atol=1e-5)
    np.testing.assert_array_equal(after[1], before[1])


def test_written_model_has_the_mean_of_the_float_model() -> None:
    """With rounded data, too: a mean of 2 in all channels is what rounding weights moves most."""
    model, shape, axis = make_layer("gemm")
    feeds = batches((64, *shape[1:]))
    data = Calibration(feeds, InferenceSession(model).get_inputs())
    exact, errors = channel_means(model, feeds, axis), {}
    for correct in (False, True):
        quantizer = Int8Quantizer(model, data, smooth=False, correct_biases=correct)
        written = quantizer.write(quantizer.plan)
        errors[correct] = float(np.abs(channel_means(written, feeds, axis) - exact).max())
    assert errors[True] < 0.5 * errors[False]
