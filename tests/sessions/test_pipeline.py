"""Pipeline: functions and models before and after a model, and inputs in every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.graph.builder import OpBuilder


def scaler() -> ir.Model:
    op = OpBuilder()
    return op.model(x=op.Mul(op.input("raw", "float32", ("n",)), 0.5))


def adder() -> ir.Model:
    op = OpBuilder()
    return op.model(y=op.Add(op.input("x", "float32", ("n",)), 1.0))


def two_inputs() -> ir.Model:
    op = OpBuilder()
    a, b = op.input("a", "float32", ("n",)), op.input("b", "int64", ())
    return op.model(sum=op.Add(a, op.Cast(b, to=1)), same=op.Identity(a))


def test_functions_before_and_after() -> None:
    pipeline = onward.Pipeline(
        adder(),
        preprocess=lambda text: [float(t) for t in text.split()],
        postprocess=lambda r: r["y"].max(),
    )
    assert pipeline("1 2 3") == 4


def test_models_before_and_after() -> None:
    pipeline = onward.Pipeline(adder(), preprocess=scaler(), postprocess=lambda r: r)
    assert pipeline([2, 4]).tolist() == [2, 3]
    chained = onward.Pipeline(adder(), postprocess=lambda r: {"raw": r["y"]})
    assert onward.Pipeline(scaler(), preprocess=chained, providers=["TorchExecutionProvider"])(
        [1]
    ).tolist() == [1]


@pytest.mark.parametrize(
    "given", [([1, 2], 3), {"a": [1, 2], "b": 3}, (np.array([1, 2], np.float32), np.int64(3))]
)
def test_inputs_come_by_name_or_by_order(given: Any) -> None:
    results = onward.Pipeline(onward.InferenceSession(two_inputs()))(given)
    assert {name: value.tolist() for name, value in results.items()} == {
        "sum": [4, 5],
        "same": [1, 2],
    }


def test_a_wrong_number_of_inputs_is_named() -> None:
    with pytest.raises(onward.OnwardError, match="1 inputs were given, the model takes 'a', 'b'"):
        onward.Pipeline(two_inputs())([1, 2])
