"""Nodes that do nothing are removed; similar ones stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE, inference
from tests.passes.one_graph import Build, built, left_after

NOTHING: dict[str, Build] = {
    "identity": lambda op, x: op.Identity(x),
    "dropout": lambda op, x: op.Dropout(x, 0.5),
    "dropout with training_mode False": lambda op, x: op.Dropout(x, 0.5, False),
    "add 0": lambda op, x: op.Add(x, 0.0),
    "0 add": lambda op, x: op.Add(0.0, x),
    "add zeros": lambda op, x: op.Add(x, np.zeros((1, 4), np.float32)),
    "sub 0": lambda op, x: op.Sub(x, 0.0),
    "mul 1": lambda op, x: op.Mul(x, 1.0),
    "mul ones": lambda op, x: op.Mul(np.ones(4, np.float32), x),
    "div 1": lambda op, x: op.Div(x, 1.0),
    "pow 1": lambda op, x: op.Pow(x, 1.0),
    "cast": lambda op, x: op.Cast(x, to=ir.DataType.FLOAT),
    "reshape": lambda op, x: op.Reshape(x, [3, 4]),
    "reshape by 0": lambda op, x: op.Reshape(x, [0, -1]),
    "flatten": lambda op, x: op.Flatten(x),
    "expand": lambda op, x: op.Expand(x, [1, 4]),
    "tile": lambda op, x: op.Tile(x, [1, 1]),
    "pad": lambda op, x: op.Pad(x, [0, 0, 0, 0]),
    "slice": lambda op, x: op.Slice(x, [0, 0], [3, 2**31], [0, 1]),
    "transpose": lambda op, x: op.Transpose(x, perm=[0, 1]),
    "concat": lambda op, x: op.Concat(x, axis=0),
    "concat of nothing": lambda op, x: op.Concat(x, np.zeros((0, 4), np.float32), axis=0),
    "split": lambda op, x: op.Split(x, axis=0, num_outputs=1),
    "sum": lambda op, x: op.Sum(x),
    "where": lambda op, x: op.Where(np.ones((1, 4), bool), x, np.zeros((3, 4), np.float32)),
    "gather": lambda op, x: op.Gather(x, np.arange(4), axis=1),
    "neg neg": lambda op, x: op.Neg(op.Neg(x)),
    "not not": lambda op, x: op.Cast(op.Not(op.Not(op.Less(x, 0.0))), to=1),
    "squeeze": lambda op, x: op.Squeeze(op.Unsqueeze(x, [1]), [1]),
    "mean of ones": lambda op, x: op.Squeeze(op.ReduceMean(op.Unsqueeze(x, [0]), [0]), [0]),
}


@pytest.mark.parametrize("build", list(NOTHING.values()), ids=list(NOTHING))
def test_node_that_does_nothing_is_removed(build: Build) -> None:
    def between(op: OpBuilder, x: Any) -> Any:
        return op.Relu(build(op, op.Exp(x)))

    left = left_after(built(between, (3, 4)), 1)
    assert left in (["Exp", "Relu"], ["Cast", "Exp", "Less", "Relu"])


SOMETHING: dict[str, Build] = {
    "add a wider zero": lambda op, x: op.Add(x, np.zeros((2, 1, 1), np.float32)),
    "mul a wider one": lambda op, x: op.Mul(np.ones((1, 1, 1), np.float32), x),
    "0 sub": lambda op, x: op.Sub(0.0, x),
    "1 div": lambda op, x: op.Div(1.0, x),
    "add nearly 0": lambda op, x: op.Add(x, np.float32([0, 0, 0, 1e-6])),
    "expand wider": lambda op, x: op.Expand(x, [2, 1, 1]),
    "slice short": lambda op, x: op.Slice(x, [0], [2], [0]),
    "slice backwards": lambda op, x: op.Slice(x, [-1], [-(2**31)], [0], [-1]),
    "pad": lambda op, x: op.Pad(x, [0, 0, 0, 1]),
    "gather in reverse": lambda op, x: op.Gather(x, [3, 2, 1, 0], axis=1),
    "where mixed": lambda op, x: op.Where(np.float32([1, 0, 1, 0]) > 0, x, op.Neg(x)),
    "where wider": lambda op, x: op.Where(True, x, np.zeros((2, 3, 4), np.float32)),
    "dropout's mask": lambda op, x: op.Dropout(x, 0.5, outputs=2),
}


@pytest.mark.parametrize("build", list(SOMETHING.values()), ids=list(SOMETHING))
def test_a_node_that_does_something_stays(build: Build) -> None:
    assert left_after(built(build, (3, 4)), 1)


@pytest.mark.parametrize("build", [lambda op, x: op.Add(x, 0.0), lambda op, x: op.Identity(x)])
def test_an_input_that_is_returned_is_copied(build: Build) -> None:
    assert left_after(built(build, (3, 4)), 1) == ["Identity"]


def test_two_outputs_of_one_value_keep_their_names() -> None:
    def both(op: OpBuilder, x: Any) -> Any:
        y = op.Relu(x)
        return y, op.Add(y, 0.0), op.Mul(1.0, y)

    assert left_after(built(both, (3, 4)), 1) == ["Identity", "Identity", "Relu"]


def test_a_number_that_a_feed_can_change_stays() -> None:
    def shifted(op: OpBuilder, x: Any) -> Any:
        return op.Add(x, op.initializer("zero", np.float32(0)))

    model = built(shifted, (3, 4))
    model.graph.inputs.append(model.graph.initializers["zero"])
    assert left_after(model, 1) == ["Add"]


def test_reshape_to_the_same_symbolic_shape_is_removed() -> None:
    def again(op: OpBuilder, x: Any) -> Any:
        return op.Relu(op.Reshape(x, op.Shape(x)))

    assert left_after(built(again, ("n", "m")), 1) == ["Relu"]


def test_reshape_to_an_unknown_size_stays() -> None:
    def again(op: OpBuilder, x: Any, y: Any) -> Any:
        return op.Relu(op.Reshape(x, op.Shape(y)))

    assert "Reshape" in left_after(built(again, ("n", None), ("n", None)), 1)


@pytest.mark.parametrize("number", [0.0, 1.0])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "Gemm"])
def test_a_bias_of_zeros_is_removed(operator: str, number: float) -> None:
    op = OpBuilder()
    shape = (2, 2) if operator == "Gemm" else (1, 2, 4, 4)
    x = op.input("x", "float32", shape)
    w = np.ones((2, 2) if operator == "Gemm" else (2, 2, 1, 1), np.float32)
    y = getattr(op, operator)(x, w, np.full(2, number, np.float32))
    (node,) = inference(2)(PREPARE(op.model(y=y))).graph
    assert len(node.inputs) == (2 if number == 0 else 3)
