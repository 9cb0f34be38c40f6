"""Equal nodes are merged, equal initializers too; random, stateful or unlike ones are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.deduplicate import share_expressions, share_initializers
from onward.passes.pipelines import PREPARE
from tests.passes.one_graph import built, left_after


def test_equal_nodes_are_computed_once() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.Softmax(x, axis=1), op.Softmax(x, axis=1))

    assert left_after(built(twice, (2, 3)), share_expressions) == ["Add", "Softmax"]


def test_nodes_after_merged_nodes_are_merged() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.Neg(op.Exp(x)), op.Neg(op.Exp(x)))

    assert left_after(built(twice, (2, 3)), share_expressions) == ["Add", "Exp", "Neg"]


def test_nodes_with_other_attributes_are_kept() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.Softmax(x, axis=1), op.Softmax(x, axis=0))

    assert left_after(built(twice, (3, 3)), share_expressions).count("Softmax") == 2


def test_graph_outputs_keep_their_names() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Exp(x), op.Exp(x)

    assert left_after(built(twice, (2, 3)), 1) == ["Exp", "Identity"]


@pytest.mark.parametrize("operator", ["RandomNormalLike", "Bernoulli"])
def test_random_draws_are_kept(operator: str) -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Sub(getattr(op, operator)(x), getattr(op, operator)(x))

    model = share_expressions(PREPARE(built(twice, (2, 3))))
    assert [node.op_type for node in model.graph].count(operator) == 2


def test_dropout_in_training_is_kept() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        ratio, training = (
            op.initializer("ratio", np.float32(0.5)),
            op.initializer("t", np.bool_(True)),
        )
        return op.Sub(op.Dropout(x, ratio, training), op.Dropout(x, ratio, training))

    model = share_expressions(PREPARE(built(twice, (2, 3))))
    assert [node.op_type for node in model.graph].count("Dropout") == 2


def test_nodes_of_unknown_domains_are_kept() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Count(x, domain="mine"), op.Count(x, domain="mine")

    model = share_expressions(PREPARE(built(twice, (2, 3))))
    assert [node.op_type for node in model.graph].count("Count") == 2


def test_zero_and_minus_zero_are_different_attributes() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        return op.Div(op.LeakyRelu(x, alpha=0.0), op.LeakyRelu(x, alpha=-0.0))

    model = share_expressions(built(twice, (2, 3)))
    assert [node.op_type for node in model.graph].count("LeakyRelu") == 2


def test_nodes_with_other_optional_outputs_are_kept() -> None:
    def twice(op: OpBuilder, x: Any) -> Any:
        value, _ = op.MaxPool(x, kernel_shape=[1, 1], outputs=2)
        _, indices = op.MaxPool(x, kernel_shape=[1, 1], outputs=2)
        return value, indices

    model = built(twice, (1, 1, 2, 2))
    first, _ = model.graph
    first.outputs[1].name = ""
    onnx.checker.check_model(ir.to_proto(share_expressions(model)))
    assert len(model.graph) == 2


def test_equal_nodes_in_a_subgraph_are_merged() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[3] x, bool c) => (float[3] y) {
            y = If (c) <
                then_branch = t () => (float[3] a) { p = Exp(x) q = Exp(x) a = Add(p, q) },
                else_branch = e () => (float[3] b) { b = Neg(x) }>
        }"""
    )
    left = [node.op_type for node in share_expressions(model).graph.all_nodes()]
    assert left == ["If", "Exp", "Add", "Neg"]


def weights(op: OpBuilder, x: Any) -> Any:
    ones = [op.initializer(f"w{i}", np.ones(3, np.float32)) for i in range(3)]
    half = op.initializer("half", np.ones(3, np.float16))
    y = op.Add(op.Mul(op.Sub(x, ones[0]), ones[1]), ones[2])
    return y, op.Neg(half)


def test_equal_initializers_are_merged() -> None:
    model = share_initializers(PREPARE(built(weights, (2, 3))))
    assert sorted(model.graph.initializers) == ["half", "w0"]
    left_after(built(weights, (2, 3)), share_initializers)


def test_initializers_that_are_inputs_are_kept() -> None:
    model = built(weights, (2, 3))
    model.graph.inputs.append(model.graph.initializers["w1"])
    assert sorted(share_initializers(PREPARE(model)).graph.initializers) == ["half", "w0", "w1"]
