"""Shapes inside and after loops."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.graph.scopes import walk
from onward.graph.shapes.declared import infer_from_inputs


def loops(text: str) -> list[tuple[list[str], list[str], list[str]]]:
    """Of every Loop and Scan: the shapes of its body's inputs and outputs, and of its own."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model = infer_from_inputs(ir.from_proto(proto))
    found = []
    for node in walk(model.graph):
        if node.op_type in ("Loop", "Scan"):
            body = node.attributes["body"].as_graph()
            parts = (body.inputs, body.outputs, node.outputs)
            found.append(tuple([str(value.shape) for value in part] for part in parts))
    return found  # type: ignore[return-value]


def test_a_size_that_the_body_returns_is_kept() -> None:
    ((inside, returned, behind),) = loops(
        """g (float["n", 3] x, float[3, 3] w, int64 k) => (y) {
            y = Loop(k, , x) <body = b (int64 i, bool go, a) => (go2, c) {
                go2 = Identity(go) c = MatMul(a, w) }>
        }"""
    )
    assert (inside[2], returned[1], behind[0]) == ("[n,3]", "[n,3]", "[n,3]")


def test_a_size_that_changes_is_free_even_if_declared() -> None:
    ((inside, _, behind),) = loops(
        """g (float[1, 3] x, int64 k) => (float[1, 3] y) {
            y = Loop(k, , x) <body = b (int64 i, bool go, float[1, 3] a)
                => (bool go2, float[1, 3] c) {
                go2 = Identity(go) c = Concat<axis = 0>(a, a) }>
        }"""
    )
    assert inside[2].startswith("[None") and behind[0].startswith("[None")
    assert inside[2].endswith(",3]") and behind[0].endswith(",3]")


def test_an_unchanged_unknown_size_has_one_name() -> None:
    ((inside, returned, behind),) = loops(
        """g (float["n"] x, float["m"] z, int64 k) => (y) {
            start = Concat<axis = 0>(x, z)
            y = Loop(k, , start) <body = b (int64 i, bool go, a) => (go2, c) {
                go2 = Identity(go) c = Sin(a) }>
        }"""
    )
    assert inside[2] == returned[1] == behind[0] != "[None]"


def test_nested_loops_are_inferred() -> None:
    outer, inner = loops(
        """g (float["n", 3] x, int64 k) => (y) {
            y = Loop(k, , x) <body = b (int64 i, bool go, a) => (go2, c) {
                go2 = Identity(go)
                c = Loop(k, , a) <body = b2 (int64 i2, bool go3, a2) => (go4, c2) {
                    go4 = Identity(go3) s = Sin(a2) c2 = Add(s, a) }>
            }>
        }"""
    )
    assert (outer[0][2], outer[2][0], inner[0][2], inner[2][0]) == ("[n,3]",) * 4


def test_scan_inputs_lose_the_scanned_axis() -> None:
    ((inside, _, behind),) = loops(
        """g (float["n"] s, float["t", "n"] x) => (last, y) {
            last, y = Scan<num_scan_inputs = 1, body = b (state, row) => (s2, r2) {
                s2 = Sin(state) r2 = Identity(row) }>(s, x)
        }"""
    )
    assert (inside, behind[0]) == (["[n]", "[n]"], "[n]")
