"""Transposes around matrix products are removed."""

from __future__ import annotations

from typing import Any

import pytest

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import TRAINING
from tests.passes.one_graph import Build, built, left_after


def by_transposed(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Gemm(op.Transpose(a, perm=[1, 0]), op.Transpose(b), transB=1, alpha=0.5)


def with_a_bias(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Gemm(op.Transpose(a, perm=[1, 0]), b, op.ReduceSum(b, [0], keepdims=1), beta=2.0)


def turned_gemm(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Transpose(op.Gemm(a, b, transA=1, alpha=3.0), perm=[1, 0])


def turned_twice(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Transpose(op.Gemm(op.Transpose(a), b), perm=[1, 0])


@pytest.mark.parametrize("build", [by_transposed, turned_gemm, turned_twice])
def test_a_gemm_takes_transposes_into_its_attributes(build: Build) -> None:
    assert left_after(built(build, (3, 4), (3, 5)), TRAINING) == ["Gemm"]


def test_gemm_with_bias_reads_transposed() -> None:
    assert left_after(built(with_a_bias, (3, 4), (3, 5)), TRAINING) == ["Gemm", "ReduceSum"]


def turned_with_a_bias(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Transpose(op.Gemm(a, b, op.ReduceSum(b, [0], keepdims=1), transA=1), perm=[1, 0])


def read_twice(op: OpBuilder, a: Any, b: Any) -> Any:
    product = op.Gemm(a, b, transA=1)
    return op.Transpose(product, perm=[1, 0]), op.Relu(product)


@pytest.mark.parametrize("build", [turned_with_a_bias, read_twice])
def test_transposed_product_with_other_readers_stays(build: Build) -> None:
    assert "Transpose" in left_after(built(build, (3, 4), (3, 5)), TRAINING)


def keys_gradient(op: OpBuilder, q: Any, ds: Any) -> Any:
    turned = op.Transpose(q, perm=[0, 2, 1])
    return op.Transpose(op.MatMul(turned, ds), perm=[0, 2, 1])


def test_transpose_of_a_product_moves_to_one_operand() -> None:
    model = built(keys_gradient, (2, 3, 4), (2, 3, 5))
    assert left_after(model, TRAINING) == ["MatMul", "Transpose"]


def both_turned(op: OpBuilder, a: Any, b: Any) -> Any:
    turned = [op.Transpose(x, perm=[0, 2, 1]) for x in (a, b)]
    return op.Transpose(op.MatMul(*turned), perm=[0, 2, 1])


def test_a_product_of_transposes_has_no_transpose_left() -> None:
    assert left_after(built(both_turned, (2, 3, 4), (2, 5, 3)), TRAINING) == ["MatMul"]


def neither_turned(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Transpose(op.MatMul(a, b), perm=[0, 2, 1])


def batch_moves_too(op: OpBuilder, a: Any, b: Any) -> Any:
    return op.Transpose(op.MatMul(op.Transpose(a, perm=[0, 2, 1]), b), perm=[2, 1, 0])


@pytest.mark.parametrize("build", [neither_turned, batch_moves_too])
def test_other_transposed_products_stay(build: Build) -> None:
    shapes = [(2, 3, 4), (2, 4, 3)] if build is neither_turned else [(2, 3, 4), (2, 3, 5)]
    assert "Transpose" in left_after(built(build, *shapes), TRAINING)


def rows_and_back(op: OpBuilder, x: Any) -> Any:
    rows = op.Relu(op.Flatten(x, axis=2))
    return op.Neg(op.Flatten(op.Reshape(rows, [-1, 3, 4]), axis=2))


def test_flatten_of_reshape_is_removed() -> None:
    assert left_after(built(rows_and_back, (2, 3, 4)), TRAINING) == ["Flatten", "Neg", "Relu"]


def other_rows(op: OpBuilder, x: Any) -> Any:
    return op.Neg(op.Flatten(op.Reshape(op.Relu(x), [2, 3, 4]), axis=1))


def test_other_rows_are_flattened() -> None:
    assert len(left_after(built(other_rows, (6, 4)), TRAINING)) > 2
