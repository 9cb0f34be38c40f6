"""Sums of float16 products are computed in float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.passes.wide_sums import widen_sums
from tests.passes.running import run_reference


def product(dtype: str) -> ir.Model:
    op = OpBuilder()
    return op.model(y=op.MatMul(op.input("a", dtype, (1, 4096)), op.input("b", dtype, (4096, 1))))


def test_a_half_product_is_summed_in_float32() -> None:
    model = widen_sums(product("float16"))
    assert [node.op_type for node in model.graph] == ["Cast", "Cast", "MatMul", "Cast"]
    ones = np.ones((1, 4096), np.float16)
    (y,) = run_reference(model, {"a": ones, "b": ones.T})
    assert (y.dtype, y.tolist()) == (np.float16, [[4096]])
    assert [v.name for v in model.graph.outputs] == ["y"]


def test_other_types_stay_as_they_are() -> None:
    model = widen_sums(product("float32"))
    assert [node.op_type for node in model.graph] == ["MatMul"]
