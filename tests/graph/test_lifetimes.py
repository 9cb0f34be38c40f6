"""Lifetimes: births, deaths, in place, reuse, and a layout without overlaps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.graph.builder import OpBuilder
from onward.graph.lifetimes import Buffer, Lifetimes, MemoryRules, aligned, lifetimes
from onward.graph.shapes.infer import infer_shapes

PLAIN = MemoryRules()
IN_PLACE = MemoryRules({"Reshape": ((0, 0),)}, {"Relu": ((0, 0),), "Add": ((0, 0), (1, 0))})
REUSE = MemoryRules({}, {}, reuses_dead=True)


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


def test_a_dead_buffer_of_the_same_shape_is_reused() -> None:
    lives = lifetimes(chain("Exp", "Neg", "Abs", "Sin", "Cos"), REUSE, nbytes)
    assert [len(step.births) for step in lives.steps] == [1, 1, 0, 0, 1]


@pytest.mark.parametrize(("dim", "births"), [("n", [1, 1, 0, 1]), (None, [1, 1, 1, 1])])
def test_symbolic_sizes_decide_whether_a_buffer_is_reused(dim: Any, births: list[int]) -> None:
    graph = chain("Exp", "Neg", "Abs", "Sin")
    for node in graph:
        node.outputs[0].shape = ir.Shape([dim])
    lives = lifetimes(graph, REUSE, lambda value: 100)
    assert [len(step.births) for step in lives.steps] == births


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


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9), st.integers(0, 9)), max_size=20))
@settings(max_examples=60, deadline=None)
def test_buffers_alive_together_do_not_overlap(spans: list[tuple[int, int, int]]) -> None:
    buffers = [Buffer(str(i), n, min(a, b), max(a, b)) for i, (n, a, b) in enumerate(spans)]
    offsets, size = Lifetimes(buffers, []).layout(64)
    for i, a in enumerate(buffers):
        assert offsets[i] % 64 == 0 and offsets[i] + a.nbytes <= size
        for j, b in enumerate(buffers[:i]):
            if a.birth <= b.death and b.birth <= a.death:
                apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
                assert apart
    at_once = [sum(b.nbytes for b in buffers if b.birth <= t <= b.death) for t in range(10)]
    assert size >= max(at_once)


def test_the_layout_reuses_the_smallest_gap() -> None:
    buffers = [Buffer("a", 640, 0, 1), Buffer("b", 320, 0, 9), Buffer("c", 64, 2, 3)]
    offsets, size = Lifetimes(buffers, []).layout()
    assert offsets == [0, 640, 0] and size == 960


@pytest.mark.parametrize(("size", "rounded"), [(0, 0), (1, 256), (256, 256), (257, 512)])
def test_sizes_are_rounded_up(size: int, rounded: int) -> None:
    assert aligned(size, 256) == rounded
