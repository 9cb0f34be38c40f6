"""Which products at the end of a model stay in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.passes.pipelines import PREPARE
from onward.programs.precision.lower_precision import lower_precision
from onward.programs.precision.precision import Precision


def weights(op: Any, name: str, *shape: int) -> Any:
    return op.initializer(name, np.zeros(shape, np.float32))


def classifier(classes: int, *, hidden: int = 256, heads: int = 1, views: bool = False) -> ir.Model:
    op = onward.OpBuilder()
    h = op.input("x", "float32", ("batch", hidden))
    for i in range(4):
        h = op.Relu(op.MatMul(h, weights(op, f"w{i}", hidden, hidden)))
    scores = [op.MatMul(h, weights(op, f"head{i}", hidden, classes)) for i in range(heads)]
    if views:
        scores = [op.Add(op.Reshape(y, np.array([-1, classes])), np.float32(1)) for y in scores]
    return op.model(**{f"y{i}": op.Softmax(y) for i, y in enumerate(scores)})


def types_of_products(model: ir.Model) -> list[str]:
    prepared = PREPARE(model)
    lower_precision(prepared, Precision(dtype="bf16"))
    products = [node for node in prepared.graph if node.op_type == "MatMul"]
    return [node.outputs[0].dtype.name for node in products]  # type: ignore[union-attr]


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_small_heads_stay_in_float32(heads: int, views: bool) -> None:
    found = types_of_products(classifier(10, heads=heads, views=views))
    assert found == ["BFLOAT16"] * 4 + ["FLOAT"] * heads


def test_large_heads_are_in_16_bits() -> None:
    assert types_of_products(classifier(1000)) == ["BFLOAT16"] * 5


def test_a_small_share_of_much_work_is_not_tiny() -> None:
    """Float32 would take longer than the rest saves."""
    assert types_of_products(classifier(100, hidden=1024)) == ["BFLOAT16"] * 5
    assert types_of_products(classifier(8, hidden=1024))[-1] == "FLOAT"


def test_products_of_one_size_are_all_in_16_bits() -> None:
    op = onward.OpBuilder()
    h = op.input("x", "float32", ("batch", 8))
    for i in range(3):
        h = op.MatMul(h, weights(op, f"w{i}", 8, 8))
    assert types_of_products(op.model(y=h)) == ["BFLOAT16"] * 3


def test_a_head_before_a_large_product_is_none() -> None:
    op = onward.OpBuilder()
    h = op.MatMul(op.input("x", "float32", ("batch", 256)), weights(op, "narrow", 256, 4))
    y = op.MatMul(op.MatMul(h, weights(op, "wide", 4, 1024)), weights(op, "last", 1024, 1024))
    assert types_of_products(op.model(y=y)) == ["BFLOAT16"] * 3
