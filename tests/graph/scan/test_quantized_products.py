"""Models of quantized products that onnxruntime computes wrong as they are, run right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.graph.files import save
from onward.graph.protos import to_proto
from onward.graph.scan.model_scan import scan_model

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


def test_large_weights_of_float_data_are_not_of_products_of_integers() -> None:
    op = Op(21)
    x = op.input("x", "float32", ("rows", 16))
    y = op.MatMul(x, dequantized(op, (16, 16), 1, 127))
    data = to_proto(op.model(y=y)).SerializeToString()
    assert not scan_model(data).products.has_large_weights(data)
