"""Activations that exporters write out are fused; formulas that differ are not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from tests.passes.one_graph import Build, built, left_after

ROOT_TWO = math.sqrt(2)
C = math.sqrt(2 / math.pi)


def gelu_of_torch(op: OpBuilder, x: Any) -> Any:
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, ROOT_TWO)), 1.0)), 0.5)


def gelu_of_keras(op: OpBuilder, x: Any) -> Any:
    return op.Mul(op.Mul(0.5, x), op.Add(1.0, op.Erf(op.Mul(x, 1 / ROOT_TWO))))


def gelu_spread_out(op: OpBuilder, x: Any) -> Any:
    half = op.Mul(x, 0.5)
    return op.Add(half, op.Mul(op.Erf(op.Mul(1 / ROOT_TWO, x)), half))


def gelu_of_transformers(op: OpBuilder, x: Any) -> Any:
    inner = op.Mul(C, op.Add(x, op.Mul(0.044715, op.Pow(x, 3.0))))
    return op.Mul(op.Mul(0.5, x), op.Add(1.0, op.Tanh(inner)))


def gelu_of_megatron(op: OpBuilder, x: Any) -> Any:
    inner = op.Mul(op.Mul(x, C), op.Add(op.Mul(op.Mul(x, 0.044715), x), 1.0))
    return op.Mul(x, op.Mul(0.5, op.Add(op.Tanh(inner), 1.0)))


def swish(op: OpBuilder, x: Any) -> Any:
    return op.Mul(x, op.Sigmoid(x))


def quick_gelu(op: OpBuilder, x: Any) -> Any:
    return op.Mul(op.Sigmoid(op.Mul(x, 1.702)), x)


def hard_swish(op: OpBuilder, x: Any) -> Any:
    return op.Div(op.Mul(x, op.Clip(op.Add(x, 3.0), 0.0, 6.0)), 6.0)


def hard_swish_of_torch(op: OpBuilder, x: Any) -> Any:
    return op.Mul(x, op.Div(op.Clip(op.Add(x, 3.0), 0.0, 6.0), 6.0))


def hard_swish_of_hard_sigmoid(op: OpBuilder, x: Any) -> Any:
    return op.Mul(x, op.HardSigmoid(x, alpha=1 / 6, beta=0.5))


def mish(op: OpBuilder, x: Any) -> Any:
    return op.Mul(x, op.Tanh(op.Softplus(x)))


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (gelu_of_torch, "Gelu"),
        (gelu_of_keras, "Gelu"),
        (gelu_spread_out, "Gelu"),
        (gelu_of_transformers, "Gelu"),
        (gelu_of_megatron, "Gelu"),
        (swish, "Swish"),
        (quick_gelu, "Swish"),
        (hard_swish, "HardSwish"),
        (hard_swish_of_torch, "HardSwish"),
        (hard_swish_of_hard_sigmoid, "HardSwish"),
        (mish, "Mish"),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3), ("n", 3)])
def test_an_activation_becomes_one_operator(build: Build, operator: str, shape: Any) -> None:
    assert left_after(built(build, shape)) == [operator]


@pytest.mark.parametrize("build", [gelu_of_torch, swish, hard_swish])
def test_values_with_other_readers_stay(build: Build) -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        y = build(op, x)
        inner = next(
            v for n in op.graph for v in n.outputs if n.op_type in ("Erf", "Sigmoid", "Clip")
        )
        return y, op.Neg(inner)

    def and_returned(op: OpBuilder, x: Any) -> Any:
        y = build(op, x)
        return y, op.graph[0].outputs[0]

    assert not {"Gelu", "Swish", "HardSwish"} & set(left_after(built(twice, (2, 3))))
    assert not {"Gelu", "Swish", "HardSwish"} & set(left_after(built(and_returned, (2, 3))))


def test_other_constants_are_not_fused() -> None:
    def not_gelu(op: OpBuilder, x: Any) -> Any:
        return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, 1.5)), 1.0)), 0.5)

    def not_hard_swish(op: OpBuilder, x: Any) -> Any:
        return op.Div(op.Mul(x, op.Clip(op.Add(x, 3.0), 0.0, 5.0)), 6.0)

    assert "Gelu" not in left_after(built(not_gelu, (2, 3)))
    assert "HardSwish" not in left_after(built(not_hard_swish, (2, 3)))


def test_gelu_with_constants_rounded_to_bfloat16_is_fused() -> None:
    """sqrt(2 / pi) is 0.796875 there, 0.044715 is 0.0446777."""

    def half(op: OpBuilder, number: float) -> Any:
        return op.Cast(op.Constant(value_float=number), to=ir.DataType.BFLOAT16)

    def build(op: OpBuilder, x: Any) -> Any:
        x = op.Cast(x, to=ir.DataType.BFLOAT16)
        cube = op.Mul(op.Mul(x, x), x)
        inner = op.Mul(half(op, C), op.Add(x, op.Mul(half(op, 0.044715), cube)))
        y = op.Mul(op.Mul(half(op, 0.5), x), op.Add(half(op, 1.0), op.Tanh(inner)))
        return op.Cast(y, to=ir.DataType.FLOAT)

    assert "Gelu" in left_after(built(build, (2, 3)))


def test_two_different_values_are_not_fused_to_gelu() -> None:
    def mixed(op: OpBuilder, a: Any, b: Any) -> Any:
        return op.Mul(op.Mul(a, op.Add(op.Erf(op.Div(b, ROOT_TWO)), 1.0)), 0.5)

    assert "Gelu" not in left_after(built(mixed, (2, 3), (2, 3)))


def test_non_scalar_constants_are_not_fused_to_gelu() -> None:
    def vectors(op: OpBuilder, x: Any) -> Any:
        roots = np.full(3, ROOT_TWO, np.float32) + np.arange(3, dtype=np.float32)
        return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, roots)), 1.0)), 0.5)

    assert "Gelu" not in left_after(built(vectors, (2, 3)))


def test_constant_that_adds_an_axis_is_not_fused_to_gelu() -> None:
    def widened(op: OpBuilder, x: Any) -> Any:
        half = np.full((1, 1, 1), 0.5, np.float32)
        return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, ROOT_TWO)), 1.0)), half)

    assert "Gelu" not in left_after(built(widened, (2, 3)))


def test_initializer_that_is_an_input_is_not_constant() -> None:
    model = built(gelu_of_torch, (2, 3))
    half = next(v for v in model.graph.initializers.values() if v.const_value.numpy() == 0.5)
    model.graph.inputs.append(half)
    assert "Gelu" not in left_after(model)
