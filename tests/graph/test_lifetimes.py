"""Lifetimes: births, deaths, aliases and operators in place."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.graph.lifetimes import MemoryRules, lifetimes
from onward.graph.shapes.infer import infer_shapes

PLAIN = MemoryRules()
IN_PLACE = MemoryRules({"Reshape": ((0, 0),)}, {"Relu": ((0, 0),), "Add": ((0, 0), (1, 0))})


def nbytes(value: ir.Value) -> int:
    assert value.shape is not None and value.dtype is not None
    return math.prod(value.shape.numpy()) * int(value.dtype.itemsize)


def chain(*operators: str) -> ir.Graph:
    """x of 100 bytes through these operators, each a value of 100 bytes."""
    op = OpBuilder()
    y = op.input("x", "float32", (25,))
    for operator in operators:
        y = getattr(op, operator)(y)
    return infer_shapes(op.model(y=y)).graph


def test_a_value_lives_until_its_last_reader() -> None:
    lives = lifetimes(chain("Exp", "Neg", "Abs"), PLAIN, nbytes)
    assert [step.live for step in lives.steps] == [100, 200, 200]
    assert lives.peak == 200 and lives.outputs == 100
    assert [(b.birth, b.death) for b in lives.buffers] == [(0, 1), (1, 2), (2, 2)]


def test_a_value_that_is_read_later_stays_alive() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (25,))
    first = op.Exp(x)
    y = op.Abs(op.Neg(first))
    lives = lifetimes(infer_shapes(op.model(y=op.Add(first, y))).graph, PLAIN, nbytes)
    assert lives.peak == 300


def test_an_in_place_operator_takes_no_memory() -> None:
    lives = lifetimes(chain("Exp", "Relu", "Neg"), IN_PLACE, nbytes)
    assert [step.live for step in lives.steps] == [100, 100, 200]
    assert len(lives.buffers[0].values) == 2


def test_a_feed_is_never_written_to_and_an_output_is_never_shared() -> None:
    lives = lifetimes(chain("Relu", "Relu", "Relu"), IN_PLACE, nbytes)
    assert [len(step.births) for step in lives.steps] == [1, 0, 1]


def test_a_value_with_another_reader_is_not_overwritten() -> None:
    op = OpBuilder()
    x = op.Exp(op.input("x", "float32", (25,)))
    model = op.model(y=op.Mul(op.Relu(x), x))
    lives = lifetimes(infer_shapes(model).graph, IN_PLACE, nbytes)
    assert [len(step.births) for step in lives.steps] == [1, 1, 1]


def test_an_alias_of_a_feed_takes_nothing() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (25,))
    model = op.model(y=op.Exp(op.Reshape(x, np.array([5, 5]))))
    assert lifetimes(infer_shapes(model).graph, IN_PLACE, nbytes).peak == 100


def test_the_larger_branch_of_an_if_counts() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[25] x, bool c) => (float[25] y) {
            y = If (c) <
                then_branch = a () => (float[25] p) { p = Exp(x) },
                else_branch = b () => (float[25] q) { s = Exp(x) t = Neg(s) q = Abs(t) }
            >
        }"""
    model = infer_shapes(ir.from_onnx_text(text))
    (step,) = lifetimes(model.graph, PLAIN, nbytes).steps
    assert step.live == 100 + 200  # what a branch returns is what the If returns
    assert step.inner is not None and len(step.inner.steps) == 3
