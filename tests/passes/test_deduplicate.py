"""Computed twice, stored twice: once is enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.graph.builder import OpBuilder
from onward.passes.deduplicate import share_expressions, share_initializers
from onward.passes.pipelines import PREPARE
from tests.passes.one_graph import built, left_after


def test_equal_nodes_are_computed_once() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.Softmax(x, axis=1), op.Softmax(x, axis=1))

    assert left_after(built(twice, (2, 3)), share_expressions) == ["Add", "Softmax"]


def test_and_so_is_what_follows_from_them() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.Neg(op.Exp(x)), op.Neg(op.Exp(x)))

    assert left_after(built(twice, (2, 3)), share_expressions) == ["Add", "Exp", "Neg"]


def test_other_attributes_are_another_node() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.Softmax(x, axis=1), op.Softmax(x, axis=0))

    assert left_after(built(twice, (3, 3)), share_expressions).count("Softmax") == 2


def test_two_outputs_of_one_value_keep_their_names() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Exp(x), op.Exp(x)

    assert left_after(built(twice, (2, 3)), 1) == ["Exp", "Identity"]


def test_random_numbers_are_drawn_twice() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Sub(op.RandomNormalLike(x), op.RandomNormalLike(x))

    model = share_expressions(PREPARE(built(twice, (2, 3))))
    assert [node.op_type for node in model.graph].count("RandomNormalLike") == 2


def test_dropout_in_training_is_drawn_twice() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Sub(op.Dropout(x, 0.5, True), op.Dropout(x, 0.5, True))

    model = share_expressions(PREPARE(built(twice, (2, 3))))
    assert [node.op_type for node in model.graph].count("Dropout") == 2


def test_unknown_operators_may_have_state() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Count(x, domain="mine"), op.Count(x, domain="mine")

    model = share_expressions(PREPARE(built(twice, (2, 3))))
    assert [node.op_type for node in model.graph].count("Count") == 2


def weights(op: OpBuilder, x: Any) -> Any:
    ones = [op.initializer(f"w{i}", np.ones(3, np.float32)) for i in range(3)]
    half = op.initializer("half", np.ones(3, np.float16))
    y = op.Add(op.Mul(op.Sub(x, ones[0]), ones[1]), ones[2])
    return y, op.Neg(half)


def test_equal_initializers_are_stored_once() -> None:
    model = share_initializers(PREPARE(built(weights, (2, 3))))
    assert sorted(model.graph.initializers) == ["half", "w0"]
    left_after(built(weights, (2, 3)), share_initializers)


def test_what_a_feed_can_change_is_stored_for_itself() -> None:
    model = built(weights, (2, 3))
    model.graph.inputs.append(model.graph.initializers["w1"])
    assert sorted(share_initializers(PREPARE(model)).graph.initializers) == ["half", "w0", "w1"]
