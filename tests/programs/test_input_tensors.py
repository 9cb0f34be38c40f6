"""InputTensors that are fed while training."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.passes.pipelines import PREPARE
from onward.programs.input_tensors import InputTensors

LARGE = np.ones((128, 128), np.float32)  # 64 KiB


def model(dtype: str = "float32") -> ir.Model:
    """y = x a + b + large"""
    op = onward.OpBuilder()
    x = op.input("x", dtype, ("n", 128))
    y = op.Mul(x, op.initializer("a", np.ones(128, dtype)))
    y = op.Add(y, op.initializer("b", np.ones(128, dtype)))
    return PREPARE(op.model(y=op.Add(y, op.initializer("large", LARGE.astype(dtype)))))


def names(graph: ir.Graph) -> list[list[str | None]]:
    return [[value.name for value in graph.inputs], list(graph.initializers)]


def test_trained_and_large_tensors_become_inputs() -> None:
    made = model()
    fed = InputTensors.of(made, ["a"], [])
    fed.make_inputs(made)
    assert names(made.graph) == [["x", "a", "large"], ["b"]]
    assert (list(fed.trained), fed.frozen) == (["a"], ["large"])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_untrained_tensors_become_constant_or_frozen(dtype: str) -> None:
    base = model(dtype)
    opened = base.clone()
    fed = InputTensors.of(base, ["a", "b", "large"], [])
    fed.make_inputs(opened)
    assert names(opened.graph) == [["x", "a", "b", "large"], []]
    left = fed.only(["a"], base, opened)
    bound = ["large"] if dtype == "float32" else []  # 16-bit ones are not
    assert (list(left.trained), left.frozen) == (["a"], bound)
    assert names(opened.graph)[0] == ["x", "a", *bound]
    kept = opened.graph.initializers["b"].const_value
    assert kept is not None
    np.testing.assert_array_equal(kept.numpy(), np.ones(128))
