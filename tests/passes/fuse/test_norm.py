"""Normalisations from their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from tests.passes.one_graph import Build, built, left_after

rng = np.random.default_rng(2)
SCALE, BIAS = (rng.standard_normal(8).astype(np.float32) for _ in range(2))


def centred(op: OpBuilder, x: Any, axes: list[int] | None = None, keep: int = 1) -> Any:
    return op.Sub(x, op.ReduceMean(x, axes or [-1], keepdims=keep))


def layer_norm(op: OpBuilder, x: Any) -> Any:
    """As torch.onnx wrote it before opset 17."""
    d = centred(op, x)
    variance = op.ReduceMean(op.Pow(d, 2.0), [-1])
    y = op.Div(d, op.Sqrt(op.Add(variance, 1e-5)))
    return op.Add(op.Mul(y, SCALE), BIAS)


def layer_norm_by_reciprocal(op: OpBuilder, x: Any) -> Any:
    """As tf2onnx writes it, the difference computed twice."""
    d, again = centred(op, x), centred(op, x)
    variance = op.ReduceMean(op.Mul(again, again), [-1])
    y = op.Mul(d, op.Reciprocal(op.Sqrt(op.Add(1e-5, variance))))
    return op.Add(BIAS, op.Mul(SCALE, y))


def layer_norm_without_bias(op: OpBuilder, x: Any) -> Any:
    d = centred(op, x)
    return op.Mul(op.Div(d, op.Sqrt(op.Add(op.ReduceMean(op.Mul(d, d), [-1]), 1e-5))), SCALE)


def layer_norm_bare(op: OpBuilder, x: Any) -> Any:
    d = centred(op, x)
    return op.Mul(d, op.Pow(op.Add(op.ReduceMean(op.Pow(d, 2.0), [-1]), 1e-5), -0.5))


def rms_norm(op: OpBuilder, x: Any) -> Any:
    """As Llama's and T5's exports have it."""
    mean = op.ReduceMean(op.Pow(x, 2.0), [-1])
    return op.Mul(SCALE, op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(mean, 1e-6)))))


def rms_norm_by_division(op: OpBuilder, x: Any) -> Any:
    mean = op.ReduceMean(op.Mul(x, x), [-1])
    return op.Mul(op.Mul(x, op.Div(1.0, op.Sqrt(op.Add(mean, 1e-6)))), SCALE)


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (layer_norm, "LayerNormalization"),
        (layer_norm_by_reciprocal, "LayerNormalization"),
        (layer_norm_without_bias, "LayerNormalization"),
        (layer_norm_bare, "LayerNormalization"),
        (rms_norm, "RMSNormalization"),
        (rms_norm_by_division, "RMSNormalization"),
    ],
)
@pytest.mark.parametrize("shape", [(2, 5, 8), ("batch", "time", 8)])
def test_a_norm_becomes_one_operator(build: Build, operator: str, shape: Any) -> None:
    assert left_after(built(build, shape)) == [operator]


def test_axes_as_attributes_are_fused() -> None:
    def old(op: OpBuilder, x: Any) -> Any:
        d = op.Sub(x, op.ReduceMean(x, axes=[-1]))
        y = op.Div(d, op.Sqrt(op.Add(op.ReduceMean(op.Pow(d, 2.0), axes=[-1]), 1e-5)))
        return op.Add(op.Mul(y, SCALE), BIAS)

    assert left_after(built(old, (2, 8), opset=13)) == ["LayerNormalization"]


def test_two_last_axes_are_normalised_together() -> None:
    scale = rng.standard_normal((4, 8)).astype(np.float32)

    def both(op: OpBuilder, x: Any) -> Any:
        d = centred(op, x, [-2, -1])
        variance = op.ReduceMean(op.Pow(d, 2.0), [1, 2])
        return op.Mul(op.Div(d, op.Sqrt(op.Add(variance, 1e-5))), scale)

    assert left_after(built(both, (2, 4, 8))) == ["LayerNormalization"]


def norm_over(op: OpBuilder, x: Any, axes: list[int], inner: list[int]) -> Any:
    d = centred(op, x, axes)
    return op.Div(d, op.Sqrt(op.Add(op.ReduceMean(op.Pow(d, 2.0), inner), 1e-5)))


@pytest.mark.parametrize(
    ("axes", "inner"), [([1], [1]), ([0], [0]), ([-1], [-2]), ([0, 2], [0, 2])]
)
def test_axes_that_are_not_the_last_stay(axes: list[int], inner: list[int]) -> None:
    left = left_after(built(lambda op, x: norm_over(op, x, axes, inner), (2, 3, 8)))
    assert "LayerNormalization" not in left


def test_a_scale_for_other_axes_stays_outside() -> None:
    scale = rng.standard_normal((3, 1)).astype(np.float32)
    left = left_after(built(lambda op, x: op.Mul(norm_over(op, x, [-1], [-1]), scale), (2, 3, 8)))
    assert left == ["LayerNormalization", "Mul"]


def test_a_bias_for_other_axes_stays_outside() -> None:
    bias = rng.standard_normal((2, 3, 8)).astype(np.float32)
    left = left_after(built(lambda op, x: op.Add(norm_over(op, x, [-1], [-1]), bias), (2, 3, 8)))
    assert left == ["Add", "LayerNormalization"]


def test_a_deviation_that_is_returned_stays() -> None:
    def and_deviation(op: OpBuilder, x: Any) -> Any:
        d = centred(op, x)
        y = op.Div(d, op.Sqrt(op.Add(op.ReduceMean(op.Pow(d, 2.0), [-1]), 1e-5)))
        return y, d

    assert "LayerNormalization" not in left_after(built(and_deviation, (2, 8)))


def test_casts_of_half_precision_move_in() -> None:
    scale = SCALE.astype(np.float16)

    def half(op: OpBuilder, x: Any) -> Any:
        wide = op.Cast(x, to=ir.DataType.FLOAT)
        mean = op.ReduceMean(op.Pow(wide, 2.0), [-1])
        y = op.Mul(wide, op.Reciprocal(op.Sqrt(op.Add(mean, 1e-6))))
        return op.Mul(scale, op.Cast(y, to=ir.DataType.FLOAT16))

    assert left_after(built(half, (2, 8), dtype="float16"), rtol=2e-3) == ["RMSNormalization"]
