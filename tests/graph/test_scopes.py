"""Captured values are read by the node whose subgraph captures them."""

from __future__ import annotations

import onnx_ir as ir
from onnx import parser

from onward.graph.scopes import bodies, graphs_of, last_uses, reads, stored_tensors, walk

GRAPH = ir.from_proto(
    parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (bool c, float[1] x) => (float[1] y) {
            a = Neg (x)
            b = Abs (x)
            y = If (c) <
                then_branch = t () => (float[1] p) { p = Neg (a) },
                else_branch = e () => (float[1] q) {
                    q = If (c) <
                        then_branch = u () => (float[1] r) { r = Abs (b) },
                        else_branch = v () => (float[1] s) { s = Identity (x) }>
                }>
        }"""
    )
).graph


def test_walk_yields_a_node_before_its_subgraphs() -> None:
    kinds = [node.op_type for node in walk(GRAPH)]
    assert kinds == ["Neg", "Abs", "If", "Neg", "If", "Abs", "Identity"]
    assert len(graphs_of(ir.Model(GRAPH, ir_version=10))) == 5


def names(values: list[ir.Value]) -> set[str | None]:
    return {value.name for value in values}


def test_reads_include_captured_values_at_any_depth() -> None:
    *_, choice = GRAPH
    assert len(bodies(choice)) == 2
    assert {"c", "a", "b", "x"} <= names(reads(choice))


def test_last_uses_include_subgraphs() -> None:
    *_, choice = GRAPH
    assert {node.op_type: names(values) for node, values in last_uses(GRAPH).items()} == {
        "If": {"c", "x", "a", "b"}
    }
    assert names(last_uses(GRAPH)[choice]) == {"c", "x", "a", "b"}


def test_weights_are_initializers_and_constants_of_all_graphs() -> None:
    model = ir.from_proto(
        parser.parse_model(
            """<ir_version: 10, opset_import: ["": 20]>
            g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
                k = Constant <value = float[2] {3, 4}> ()
                h = Mul (x, w)
                y = If (c) <
                    then_branch = t () => (float[2] p) {
                        inner = Constant <value = float[2] {5, 6}> ()
                        p = Mul (h, inner)
                    },
                    else_branch = e () => (float[2] q) { q = Mul (h, k) }
                >
            }"""
        )
    )
    found = {name: tensor.numpy().tolist() for name, tensor in stored_tensors(model)}
    assert found == {"w": [1, 2], "k": [3, 4], "inner": [5, 6]}
