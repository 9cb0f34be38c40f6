"""MatMul and Add as Gemm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.graph.builder import OpBuilder
from tests.passes.one_graph import built, left_after

W = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)


def linear(op: OpBuilder, x: Any, bias: Any) -> Any:
    return op.Add(op.MatMul(x, W), bias)


@pytest.mark.parametrize("x", [(2, 3), ("batch", 3)])
@pytest.mark.parametrize("bias", [(4,), (1, 4), (1,), ()])
def test_a_product_and_its_bias_become_one_gemm(x: Any, bias: Any) -> None:
    assert left_after(built(linear, x, bias)) == ["Gemm"]


@pytest.mark.parametrize("bias", [(5, 2, 4), (1, 2, 4)])
def test_a_bias_that_widens_the_product_stays(bias: Any) -> None:
    assert left_after(built(linear, (2, 3), bias)) == ["Add", "MatMul"]


def test_batches_of_matrices_stay() -> None:
    assert left_after(built(linear, (5, 2, 3), (4,))) == ["Add", "MatMul"]


def test_a_row_that_broadcasts_over_a_bias_stays() -> None:
    assert left_after(built(linear, (1, 3), (5, 4))) == ["Add", "MatMul"]


def test_integers_stay() -> None:
    def whole(op: OpBuilder, x: Any, b: Any) -> Any:
        return op.Add(op.MatMul(x, W.astype(np.int32)), b)

    assert left_after(built(whole, (2, 3), (4,), dtype="int32")) == ["Add", "MatMul"]


def test_a_product_that_is_read_elsewhere_stays() -> None:
    def twice(op: OpBuilder, x: Any, b: Any) -> Any:
        product = op.MatMul(x, W)
        return op.Add(product, b), op.Neg(product)

    assert left_after(built(twice, (2, 3), (4,))) == ["Add", "MatMul", "Neg"]


def test_a_gemm_takes_the_bias_that_it_lacks() -> None:
    def late(op: OpBuilder, x: Any, b: Any) -> Any:
        return op.Add(op.Gemm(x, W.T.copy(), transB=1, alpha=0.5), b)

    assert left_after(built(late, (2, 3), (4,))) == ["Gemm"]


def test_a_gemm_that_has_a_bias_takes_no_other() -> None:
    def twice(op: OpBuilder, x: Any, b: Any) -> Any:
        return op.Add(op.Gemm(x, W, b), b)

    assert left_after(built(twice, (2, 3), (4,))) == ["Add", "Gemm"]
