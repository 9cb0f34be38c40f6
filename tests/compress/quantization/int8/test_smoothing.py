"""Smoothing: channels move between data and weights, and the model computes what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8 import smoothing
from onward.compress.quantization.int8.int8_layers import find_layers
from onward.compress.quantization.int8.prepare import prepare
from onward.compress.quantization.int8.smoothing import Smoothed, smooth, undo
from onward.graph.builder import OpBuilder
from onward.passes.rewrite import Names
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
WIDTH = 16
GAIN = np.ones(WIDTH, np.float32)
GAIN[[2, 5]] = 50, 20  # channels that are much larger than the others


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Net(OpBuilder):
    """A builder of small models whose hidden channels differ much in size."""

    def __init__(self) -> None:
        super().__init__(18)
        self._seed = 0

    def weight(self, *shape: int, outputs: int | None = None) -> ir.Value:
        """A weight; along the axis `outputs`, channels have the sizes of GAIN."""
        self._seed += 1
        array = normal(*shape, seed=self._seed) / np.sqrt(np.prod(shape) / shape[0])
        if outputs is not None:
            array = array * np.reshape(GAIN, [-1 if a == outputs else 1 for a in range(len(shape))])
        return self.initializer(f"w{self._seed}", array.astype(np.float32))


def layer_norm(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("rows", WIDTH))
    n = op.LayerNormalization(x, op.initializer("gain", GAIN), op.weight(WIDTH, outputs=0))
    return op.model(y=op.MatMul(n, op.weight(WIDTH, 12)))


def matmul_add(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("rows", 2, 8))
    h = op.Add(op.MatMul(x, op.weight(8, WIDTH, outputs=1)), op.weight(WIDTH, outputs=0))
    return op.model(y=op.MatMul(op.Relu(h), op.weight(WIDTH, 12)))


def gemm(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("rows", 8))
    h = op.Gemm(x, op.weight(8, WIDTH, outputs=1), op.weight(WIDTH, outputs=0))
    return op.model(y=op.Gemm(op.Relu(h), op.weight(WIDTH, 12), op.weight(12)))


def transposed_gemm(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("rows", 8))
    h = op.Gemm(x, op.weight(WIDTH, 8, outputs=0), op.weight(1, WIDTH, outputs=1), transB=1)
    return op.model(y=op.Gemm(op.Relu(h), op.weight(12, WIDTH), transB=1))


def scalar_bias(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("rows", 8))
    bias = op.initializer("b", np.array(0.5, np.float32))
    h = op.Gemm(x, op.weight(8, WIDTH, outputs=1), bias)
    return op.model(y=op.Gemm(op.Relu(h), op.weight(WIDTH, 12)))


def two_readers(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("rows", 8))
    h = op.Relu(op.Gemm(x, op.weight(8, WIDTH, outputs=1)))
    return op.model(y=op.MatMul(h, op.weight(WIDTH, 12)), z=op.MatMul(h, op.weight(WIDTH, 6)))


def convolutions(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("batch", 4, 8, 8))
    first, bias = op.weight(WIDTH, 4, 3, 3, outputs=0), op.weight(WIDTH, outputs=0)
    h = op.Relu(op.Conv(x, first, bias, pads=[1, 1, 1, 1]))
    h = op.MaxPool(h, kernel_shape=[2, 2], strides=[2, 2])
    return op.model(y=op.Conv(h, op.weight(6, WIDTH, 3, 3), pads=[1, 1, 1, 1]))


def depthwise(op: Net) -> ir.Model:
    x = op.input("x", "float32", ("batch", 4, 8, 8))
    h = op.LeakyRelu(op.Conv(x, op.weight(WIDTH, 4, 1, 1, outputs=0)), alpha=0.1)
    h = op.Conv(h, op.weight(WIDTH, 1, 3, 3), op.weight(WIDTH), group=WIDTH, pads=[1, 1, 1, 1])
    return op.model(y=h)


FOLDED = (
    *(layer_norm, matmul_add, gemm, transposed_gemm, scalar_bias, two_readers),
    *(convolutions, depthwise),
)


def clipped(op: Net) -> ir.Model:
    """A Clip at 6 between two products: it cuts off large channels only."""
    x = op.input("x", "float32", ("rows", 8))
    h = op.Clip(op.Gemm(x, op.weight(8, WIDTH, outputs=1)), 0.0, 6.0)
    return op.model(y=op.Gemm(h, op.weight(WIDTH, 12)))


def clipped_twice(op: Net) -> ir.Model:
    """The first of two Clips is the tighter one."""
    x = op.input("x", "float32", ("batch", 4, 8, 8))
    h = op.Clip(op.Conv(x, op.weight(WIDTH, 4, 1, 1, outputs=0)), 0.0, 6.0)
    h = op.Clip(op.MaxPool(h, kernel_shape=[2, 2]), 0.0, 50.0)
    return op.model(y=op.Conv(h, op.weight(6, WIDTH, 3, 3)))


def clipped_by_data(op: Net) -> ir.Model:
    """The limit of a Clip is an input of the model."""
    x, limit = op.input("x", "float32", ("rows", 8)), op.input("limit", "float32", ())
    h = op.Clip(op.Gemm(x, op.weight(8, WIDTH, outputs=1)), 0.0, limit)
    return op.model(y=op.Gemm(h, op.weight(WIDTH, 12)))


CLIPPED = (clipped, clipped_twice, clipped_by_data)


def feeds_of(model: ir.Model) -> list[dict[str, Array]]:
    sizes = {"rows": 20, "batch": 2}
    return [
        {
            str(value.name): normal(
                *(d if isinstance(d, int) else sizes[str(d)] for d in value.shape or ()), seed=seed
            )
            if value.shape
            else np.array(6, np.float32)
            for value in model.graph.inputs
        }
        for seed in range(3)
    ]


def smooth_all(model: ir.Model) -> list[Smoothed]:
    """Smooth a prepared model in place."""
    layers, _ = find_layers(model)
    data = Calibration(feeds_of(model), InferenceSession(model).get_inputs())
    return smooth(model, layers, data, matrices=True, convolutions=True)


def run(model: ir.Model) -> list[list[Array]]:
    session = InferenceSession(model)
    return [session.run(None, feeds) for feeds in feeds_of(model)]


def arrays_of(model: ir.Model) -> dict[str, Array]:
    return {n: v.const_value.numpy().copy() for n, v in model.graph.initializers.items()}  # type: ignore[union-attr]


def is_scaled(model: ir.Model, weights: dict[str, Array]) -> bool:
    """Whether the last layers have other weights than these."""
    names = [str(y.producer().inputs[1].name) for y in model.graph.outputs]  # type: ignore[union-attr]
    after = arrays_of(model)
    return all(not np.array_equal(after[name], weights.get(name)) for name in names)


def check_same_outputs(before: list[list[Array]], after: list[list[Array]]) -> None:
    for batch, other in zip(before, after, strict=True):
        for y, z in zip(batch, other, strict=True):
            np.testing.assert_allclose(z, y, rtol=1e-4, atol=2e-5 * float(np.abs(y).max()))


@pytest.mark.parametrize("outside", [False, True], ids=["one_file", "second_file"])
@pytest.mark.parametrize("make", FOLDED)
def test_smoothed_model_computes_the_same(make: Any, outside: bool, tmp_path: Path) -> None:
    source: Any = make(Net())
    if outside:
        ir.save(source, tmp_path / "m.onnx", external_data="m.data")
        source = tmp_path / "m.onnx"
    model = prepare(source)
    expected, weights = run(model), arrays_of(model)
    added = smooth_all(model)
    check_same_outputs(expected, run(model))
    assert all(each.value == "x" for each in added)  # else, factors are folded into weights
    assert is_scaled(model, weights)


@pytest.mark.parametrize("make", CLIPPED)
def test_channels_are_not_scaled_over_the_limit_of_a_clip(make: Any) -> None:
    model = prepare(make(Net()))
    expected, weights = run(model), arrays_of(model)
    smooth_all(model)
    check_same_outputs(expected, run(model))
    assert is_scaled(model, weights)  # by data behind the Clip, where its limit is not known


def test_factors_of_a_matrix_are_those_of_smoothquant() -> None:
    """s = max|x|^alpha / max|w|^(1 - alpha) for one alpha, with a geometric mean of 1."""
    model = prepare(layer_norm(Net()))
    before = arrays_of(model)
    shift, kernel = (v.name for v in (model.graph.node(0).inputs[2], model.graph.node(1).inputs[1]))
    smooth_all(model)
    after = arrays_of(model)
    factors = after["gain"] / before["gain"]
    np.testing.assert_allclose(after[shift], before[shift] * factors, rtol=1e-5)
    np.testing.assert_allclose(after[kernel], before[kernel] / factors[:, None], rtol=1e-5)

    x = np.concatenate([feeds["x"] for feeds in feeds_of(model)]).astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    data = np.abs(x * before["gain"] + before[shift]).max(axis=0)
    peak = np.abs(before[kernel]).max(axis=1)
    expected = [data**-alpha * peak ** (1 - alpha) for alpha in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
    normalized = [each / np.exp(np.log(each).mean()) for each in expected]
    assert any(np.allclose(factors, each, rtol=1e-3) for each in normalized)
    assert not np.allclose(factors, 1, atol=0.5)


def test_channels_of_a_depthwise_convolution_become_equally_large() -> None:
    """Each channel has a scale of its own weight, so that only data decides: 1 / max|x|."""
    model = prepare(depthwise(Net()))
    value = str(model.graph.node(-1).inputs[0].name)  # type: ignore[union-attr]

    def ranges() -> Array:
        copy = model.clone()
        copy.graph.outputs[:] = [v for n in copy.graph for v in n.outputs if v.name == value]
        found = [InferenceSession(copy).run(None, feeds)[0] for feeds in feeds_of(model)]
        return np.abs(np.concatenate(found)).max(axis=(0, 2, 3))

    before = ranges()
    smooth_all(model)
    after = ranges()
    assert before.max() / before.min() > 20
    np.testing.assert_allclose(after / after.mean(), 1, rtol=1e-3)


def direct(op: Net) -> ir.Model:
    """A product of the model's input, which nothing computes."""
    x = op.input("x", "float32", ("rows", WIDTH))
    large = op.Mul(x, op.Abs(op.Mul(x, GAIN)))
    return op.model(y=op.MatMul(large, op.weight(WIDTH, 12)), large=large)


def test_mul_is_added_where_nothing_can_be_folded_and_taken_away_again() -> None:
    model = prepare(direct(Net()))
    expected, nodes, weights = run(model), len(model.graph), arrays_of(model)
    layers, _ = find_layers(model)
    data = Calibration(feeds_of(model), InferenceSession(model).get_inputs())
    (added,) = smooth(model, layers, data, matrices=True, convolutions=True)
    assert len(model.graph) == nodes + 1 and added.layers == tuple(layers)
    assert next(iter(layers.values())).data == added.result
    check_same_outputs(expected, run(model))

    undo(model, added, layers, Names(model))
    check_same_outputs(expected, run(model))
    (name,) = (layer.weight for layer in layers.values())
    np.testing.assert_allclose(arrays_of(model)[name], weights[name], rtol=1e-6)


def test_tied_weights_and_what_has_no_large_channel_stay() -> None:
    op = Net()
    x = op.input("x", "float32", ("rows", WIDTH))
    w = op.weight(WIDTH, WIDTH)
    h = op.Relu(op.MatMul(op.Relu(op.MatMul(x, w)), w))
    model = prepare(op.model(y=op.MatMul(h, op.initializer("eye", np.eye(WIDTH, dtype="f4")))))
    expected, weights = run(model), arrays_of(model)
    assert smooth_all(model) == []
    check_same_outputs(expected, run(model))
    np.testing.assert_array_equal(arrays_of(model)["w1"], weights["w1"])


def shared_matrix(op: Net) -> ir.Model:
    """The weight in front of the last product is also that of another one."""
    x, w = op.input("x", "float32", ("rows", WIDTH)), op.weight(WIDTH, WIDTH, outputs=1)
    h = op.Relu(op.MatMul(op.Relu(op.MatMul(x, w)), w))
    return op.model(y=op.MatMul(h, op.weight(WIDTH, 12)))


def shared_kernel(op: Net) -> ir.Model:
    """The same between convolutions."""
    x, w = op.input("x", "float32", ("rows", WIDTH, 4, 4)), op.weight(WIDTH, WIDTH, 1, 1, outputs=0)
    h = op.Relu(op.Conv(op.Relu(op.Conv(x, w)), w))
    return op.model(y=op.Conv(h, op.weight(12, WIDTH, 1, 1)))


def shared_bias(op: Net) -> ir.Model:
    """Exporters store equal biases once."""
    x, b = op.input("x", "float32", ("rows", WIDTH)), op.weight(WIDTH)
    h = op.Relu(op.Gemm(x, op.weight(WIDTH, WIDTH, outputs=1), b))
    h = op.Relu(op.Gemm(h, op.weight(WIDTH, WIDTH, outputs=1), b))
    return op.model(y=op.Gemm(h, op.weight(WIDTH, WIDTH), b))


@pytest.mark.parametrize("make", [shared_matrix, shared_kernel, shared_bias])
def test_layers_name_the_weights_of_their_nodes(make: Any) -> None:
    model = prepare(make(Net()))
    data = Calibration(feeds_of(model), InferenceSession(model).get_inputs())
    layers, _ = find_layers(model)
    smooth(model, layers, data, matrices=True, convolutions=True)
    for node in model.graph:  # the writer stores the weight that the layer names
        layer = layers.get(str(node.name))
        if layer is not None:
            constants = [str(value.name) for value in node.inputs[1:] if value is not None]
            assert [layer.weight, *([layer.bias] if layer.bias else [])] == constants


def test_only_the_kinds_that_are_asked_for_are_scaled() -> None:
    for make, options in (
        (gemm, {"matrices": False, "convolutions": True}),
        (convolutions, {"matrices": True, "convolutions": False}),
    ):
        model = prepare(make(Net()))
        weights, (layers, _) = arrays_of(model), find_layers(model)
        data = Calibration(feeds_of(model), InferenceSession(model).get_inputs())
        assert smoothing.smooth(model, layers, data, **options) == []
        for name, array in arrays_of(model).items():
            np.testing.assert_array_equal(array, weights[name])
