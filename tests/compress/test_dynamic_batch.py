"""A fixed batch becomes dynamic, Reshapes to fixed sizes included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from onward import InferenceSession
from onward.compress.dynamic_batch import (
    dynamic_batch_copy,
    fixed_batch,
    make_fixed_batch_dynamic,
    restore_fixed_batch,
)
from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE


def reshaping(shape: list[int], inner: int | str = 4) -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", (2, inner, 6))
    return op.model(y=op.Mul(op.Reshape(op.Relu(x), shape), np.float32(2)))


def random(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "shape, inner", [([2, 24], 4), ([2, -1], 4), ([2, -1, 3], "time"), ([2, 2, -1, 3], "time")]
)
def test_a_copy_with_a_dynamic_batch_runs_on_any_number_of_rows(shape: Any, inner: Any) -> None:
    model = reshaping(shape, inner)
    copy = dynamic_batch_copy(model, {"x": random(2, 4, 6)})
    assert copy is not None
    assert fixed_batch(model) == 2
    assert fixed_batch(copy) is None
    x = random(5, 4, 6)
    (y,) = InferenceSession(copy).run(None, {"x": x})
    assert_allclose(y, 2 * np.maximum(x, 0).reshape(5, *shape[1:]))


def test_a_model_whose_rows_depend_on_each_other_has_no_copy() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (2, 6))
    model = op.model(y=op.Sub(x, op.ReduceSum(x, [0])))
    assert dynamic_batch_copy(model, {"x": random(2, 6)}) is None


def test_a_model_with_a_dynamic_batch_has_no_copy() -> None:
    op = OpBuilder()
    model = op.model(y=op.Relu(op.input("x", "float32", ("n", 6))))
    assert dynamic_batch_copy(model, {"x": random(2, 6)}) is None


def test_a_restored_batch_is_declared_again() -> None:
    model = PREPARE(reshaping([2, 24]))
    batch = make_fixed_batch_dynamic(model)
    assert batch == 2
    assert not isinstance(model.graph.inputs[0].shape[0], int)
    restore_fixed_batch(model, batch, {"x": 0})
    assert [list(v.shape) for v in (*model.graph.inputs, *model.graph.outputs)] == [
        [2, 4, 6],
        [2, 24],
    ]
