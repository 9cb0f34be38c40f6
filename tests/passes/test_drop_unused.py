"""Unused nodes are removed; the graph's inputs and outputs stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import PREPARE
from tests.passes.one_graph import built, left_after


def test_unused_nodes_are_removed_with_their_inputs() -> None:
    def dead(op: OpBuilder, x: Any) -> Any:
        op.Add(op.Exp(x), op.initializer("w", np.ones(3, np.float32)))
        return op.Relu(x)

    model = drop_unused(PREPARE(built(dead, (2, 3))))
    assert [node.op_type for node in model.graph] == ["Relu"]
    assert not model.graph.initializers


def test_unused_inputs_stay() -> None:
    model = drop_unused(PREPARE(built(lambda op, x, y: op.Relu(x), (2,), (3,))))
    assert [value.name for value in model.graph.inputs] == ["x0", "x1"]


def test_unused_optional_outputs_are_omitted() -> None:
    def pooled(op: OpBuilder, x: Any) -> Any:
        return op.MaxPool(x, kernel_shape=[2, 2], outputs=2)[0]

    (node,) = drop_unused(PREPARE(built(pooled, (1, 1, 4, 4)))).graph
    assert len(node.outputs) == 1
    left_after(built(pooled, (1, 1, 4, 4)), drop_unused)


def test_outputs_that_are_not_optional_stay() -> None:
    def largest(op: OpBuilder, x: Any) -> Any:
        return op.TopK(x, np.asarray([1]), outputs=2)[1]

    (node,) = drop_unused(PREPARE(built(largest, (4,)))).graph
    assert len(node.outputs) == 2


def test_branches_are_pruned() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 21]>
            g (bool c, float[2] x) => (float[2] y)
            {
                outer = Exp(x)
                y = If(c) <then_branch = a () => (float[2] r) { d = Neg(outer) r = Relu(x) },
                           else_branch = b () => (float[2] s) { s = Abs(x) }>
            }"""
        )
    )
    assert left_after(model, drop_unused) == ["Abs", "If", "Relu"]


def test_values_read_by_the_body_of_an_unused_node_are_removed() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 21]>
            g (float[2] x, float[3, 2] s) => (float[2] y)
            {
                y = Abs(x)
                outer = Exp(x)
                last = Scan(x, s) <num_scan_inputs = 1, body = b (float[2] p, float[2] q)
                    => (float[2] r) { o = Mul(outer, q) r = Add(p, o) }>
            }"""
        )
    )
    assert left_after(model, drop_unused) == ["Abs"]
