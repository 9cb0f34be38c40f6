"""Models of quantized products that onnxruntime computes wrong as they are, run right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

import onward
from onward.graph.files import save
from onward.graph.protos import to_proto
from onward.graph.scan.model_scan import scan_model
from onward.providers.ort.bound_session import BoundSession, to_numpy

Op = onward.OpBuilder
RNG = np.random.default_rng(0)


def dequantized(op: Op, shape: tuple[int, ...], axis: int, largest: int = 60) -> ir.Value:
    """An int8 weight with a scale for each place of an axis, of very different sizes."""
    rng, size = np.random.default_rng(1), shape[axis]
    w = op.initializer("w", rng.integers(-largest, largest + 1, shape).astype(np.int8))
    scale = op.initializer("scale", rng.uniform(0.001, 0.1, size).astype(np.float32))
    zero = op.initializer("zero", np.zeros(size, np.int8))
    return op.DequantizeLinear(w, scale, zero, axis=axis)


def rounded(op: Op, x: ir.Value, step: float) -> ir.Value:
    scale, zero = np.float32(step), np.uint8(128)
    return op.DequantizeLinear(op.QuantizeLinear(x, scale, zero), scale, zero)


def matmul(axis: int, shape: tuple[int, ...] = (16, 16)) -> Callable[[Op, ir.Value], ir.Value]:
    return lambda op, x: op.MatMul(x, dequantized(op, shape, axis))


def gemm(axis: int, transposed: int) -> Callable[[Op, ir.Value], ir.Value]:
    return lambda op, x: op.Gemm(x, dequantized(op, (16, 16), axis), transB=transposed)


def behind_transpose(axis: int) -> Callable[[Op, ir.Value], ir.Value]:
    return lambda op, x: op.MatMul(x, op.Transpose(dequantized(op, (16, 16), axis), perm=[1, 0]))


def conv(axis: int) -> Callable[[Op, ir.Value], ir.Value]:
    shape = np.array([-1, 4, 2, 2])
    return lambda op, x: op.Conv(op.Reshape(x, shape), dequantized(op, (4, 4, 1, 1), axis))


def float_weight(operator: str) -> Callable[[Op, ir.Value], ir.Value]:
    """A product of int8 data and a float weight whose channels differ very much in size."""

    def product(op: Op, x: ir.Value) -> ir.Value:
        shape = (16, 16) if operator == "Gemm" else (4, 4, 1, 1)
        w = RNG.normal(size=shape) * np.exp(np.arange(shape[0]) * 5.0 / shape[0]).reshape(
            (-1,) + (1,) * (len(shape) - 1)
        )
        data = x if operator == "Gemm" else op.Reshape(x, np.array([-1, 4, 2, 2]))
        y: ir.Value = getattr(op, operator)(data, op.initializer("w", w.astype(np.float32)))
        return y

    return product


def model_of(product: Callable[[Op, ir.Value], ir.Value]) -> bytes:
    op = Op(21)
    x = op.input("x", "float32", ("rows", 16))
    y = rounded(op, product(op, rounded(op, x, 0.02)), 0.05)
    data: bytes = to_proto(op.model(y=y)).SerializeToString()
    return data


def outputs(model: Any, **options: Any) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(2).normal(size=(8, 16)).astype(np.float32)
    (y,) = onward.InferenceSession(model, **options).run(None, {"x": x})
    found: np.ndarray[Any, Any] = y
    return found


MISREAD = [
    matmul(0),
    matmul(-2),
    matmul(0, (16, 8)),
    gemm(0, 0),
    gemm(1, 1),
    behind_transpose(1),
    conv(1),
]
RIGHT = [matmul(1), gemm(1, 0), gemm(0, 1), behind_transpose(0), conv(0)]


@pytest.mark.parametrize("product", MISREAD)
@pytest.mark.parametrize("providers", [None, ["CPUExecutionProvider"]])
def test_scales_along_the_summed_axis_are_those_of_the_summed_axis(
    product: Callable[[Op, ir.Value], ir.Value], providers: Any, tmp_path: Path
) -> None:
    data = model_of(product)
    assert scan_model(data).products.has_misread_scales
    expected = outputs(data, providers=["ReferenceExecutionProvider"])
    np.testing.assert_allclose(outputs(data, providers=providers), expected, atol=0.0501)
    path = tmp_path / "model.onnx"
    save(onward.load(data), path)
    np.testing.assert_allclose(outputs(path, providers=providers), expected, atol=0.0501)


@pytest.mark.parametrize("product", RIGHT)
def test_scales_of_the_outputs_stay_as_they_are(
    product: Callable[[Op, ir.Value], ir.Value],
) -> None:
    assert not scan_model(model_of(product)).products.has_misread_scales


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "Gemm"])
def test_float_weights_between_quantized_data_are_not_rounded(operator: str) -> None:
    data = model_of(float_weight(operator))
    assert scan_model(data).products.has_float_weights
    expected = outputs(data, providers=["ReferenceExecutionProvider"])
    # one step of the result: the same numbers, summed in another order
    np.testing.assert_allclose(outputs(data), expected, atol=0.0501)


@pytest.mark.parametrize("largest, is_large", [(64, False), (65, True)])
def test_weights_beyond_64_are_large(largest: int, is_large: bool) -> None:
    def product(op: Op, x: ir.Value) -> ir.Value:
        return op.MatMul(x, dequantized(op, (64, 64), 1, largest))

    op = Op(21)
    x = op.input("x", "float32", ("rows", 64))
    data = to_proto(op.model(y=product(op, rounded(op, x, 0.02)))).SerializeToString()
    assert scan_model(data).products.has_large_weights(data) is is_large


def stored(form: str, large: int = -65) -> bytes:
    """A product with an int8 weight that is stored in one of the forms that ONNX has."""
    w = np.full((16, 8), 3, np.int8)
    w[5, 5] = large
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [4, 16])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [4, 8])
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    weight = numpy_helper.from_array(w, "w")
    if form == "int32_data":
        weight = helper.make_tensor("w", TensorProto.INT8, w.shape, w.ravel().tolist())
    nodes, weights, inputs = [node], [weight], [x]
    if form == "Constant":
        nodes, weights = [helper.make_node("Constant", [], ["w"], value=weight), node], []
    elif form == "view":
        weights[0].name = "flat"
        nodes.insert(0, helper.make_node("Reshape", ["flat", "sizes"], ["w"]))
        weights.append(numpy_helper.from_array(np.array([16, 8]), "sizes"))
    elif form in ("first branch", "second branch"):
        small = helper.make_graph([node], "small", [], [y], [numpy_helper.from_array(w // 9, "w")])
        wide = helper.make_graph([node], "wide", [], [y], [weight])
        first, second = (wide, small) if form == "first branch" else (small, wide)
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        nodes = [helper.make_node("If", ["c"], ["y"], then_branch=first, else_branch=second)]
        weights = []
    graph = helper.make_graph(nodes, "g", inputs, [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


FORMS = ["raw", "int32_data", "Constant", "view", "first branch", "second branch"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "largest, is_large", [(-128, True), (-65, True), (-64, False), (64, False), (65, True)]
)
def test_weights_are_found_wherever_they_are_stored(
    form: str, largest: int, is_large: bool
) -> None:
    data = stored(form, largest)
    assert scan_model(data).products.has_large_weights(data) is is_large


def test_float_weights_in_another_file_are_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load_model_from_string(model_of(float_weight("Gemm")))
    save_model(model, path, save_as_external_data=True, size_threshold=0)
    expected = outputs(path, providers=["ReferenceExecutionProvider"])
    by_path = onward.SessionOptions(limits=onward.ModelLimits(allow_data_by_path=True))
    for options in (onward.SessionOptions(), by_path):
        np.testing.assert_allclose(outputs(path, sess_options=options), expected, atol=0.0501)
    session = BoundSession(path, onward.SessionOptions())
    x = np.random.default_rng(2).normal(size=(8, 16)).astype(np.float32)
    session.bind_input("x", x)
    np.testing.assert_allclose(to_numpy(session.run(["y"])[0]), expected, atol=0.0501)


def test_large_weights_of_float_data_are_not_of_products_of_integers() -> None:
    op = Op(21)
    x = op.input("x", "float32", ("rows", 16))
    y = op.MatMul(x, dequantized(op, (16, 16), 1, 127))
    data = to_proto(op.model(y=y)).SerializeToString()
    assert not scan_model(data).products.has_large_weights(data)
