"""Subgraph outputs are separated and loop invariants hoisted."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import onward
from onward.passes.loop_bodies import hoist_loop_invariants, separate_subgraph_outputs
from onward.passes.normalize import name_values

LOOP = """<ir_version: 8, opset_import: ["": 17]>
g (float[2] x, float[2] w, int64 n) => (float[2] u, float[2] y) {
    u, y = Loop(n, , w, x) <body = b (int64 i, bool go, float[2] v, float[2] a)
        => (bool go, float[2] v, float[2] c) { s = Sin(a) c = Mul(s, v) }>
}"""
SCANS = {
    "nothing computed": "(float[2] row, float[2] s) { }",
    "a state of scanned rows": "(float[2] row, float[2] s2) { s2 = Identity(s) }",
    "a state that is scanned": "(float[2] r2, float[2] s) { r2 = Identity(row) }",
    "a state that stays": "(float[2] s, float[2] r2) { r2 = Sin(row) }",
    "a row that is returned": "(float[2] r2, float[2] row) { r2 = Sin(row) }",
}


def parsed(text: str) -> ir.Model:
    return name_values(ir.from_proto(onnx.parser.parse_model(text)))


def test_a_value_that_a_loop_passes_through_is_read_from_outside() -> None:
    model = hoist_loop_invariants(separate_subgraph_outputs(parsed(LOOP)))
    (loop,) = [node for node in model.graph if node.op_type == "Loop"]
    body = loop.attributes["body"].as_graph()
    assert [value.name for value in loop.inputs if value] == ["n", "x"]
    assert [value.name for value in body.inputs] == ["i", "go", "a"]
    assert [value.name for value in model.graph.outputs] == ["u", "y"]
    product = next(node for node in body if node.op_type == "Mul")
    assert product.inputs[1] is model.graph.inputs[1]


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_loop_without_invariants_has_the_same_outputs(trips: int) -> None:
    feeds = {
        "x": np.array([0.5, -1], np.float32),
        "w": np.array([2, 3], np.float32),
        "n": np.array(trips),
    }
    before = onward.InferenceSession(LOOP_BYTES).run(None, feeds)
    model = hoist_loop_invariants(separate_subgraph_outputs(parsed(LOOP)))
    for a, b in zip(before, onward.InferenceSession(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


LOOP_BYTES = onnx.parser.parse_model(LOOP).SerializeToString()


def test_a_loop_of_only_invariants_stays_a_loop() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, int64 n) => (float[2] y) {
            y = Loop(n, , x) <body = b (int64 i, bool go, float[2] a) => (bool go, float[2] a) { }>
        }"""
    )
    model = hoist_loop_invariants(separate_subgraph_outputs(model))
    feeds = {"x": np.ones(2, np.float32), "n": np.array(2)}
    np.testing.assert_array_equal(onward.InferenceSession(model).run(None, feeds)[0], feeds["x"])


@pytest.mark.parametrize("name", SCANS)
def test_scan_that_returns_its_inputs_is_correct(name: str) -> None:
    """Stock onnxruntime returns garbage."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, float[3, 2] rows) => (float[2] last, float[3, 2] y) {{
            last, y = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] row)
                => {SCANS[name]}>(x, rows)
        }}"""
    )
    feeds = {"x": np.zeros(2, np.float32), "rows": np.arange(1, 7, dtype=np.float32).reshape(3, 2)}
    expected = ReferenceEvaluator(model).run(None, feeds)
    for a, b in zip(expected, onward.InferenceSession(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_body_that_returns_one_value_twice_returns_a_copy() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, int64 n) => (float[2] y, float[2] z) {
            y, z = Loop(n, , x, x) <body = b (int64 i, bool go, float[2] p, float[2] q)
                => (bool go, float[2] c, float[2] c) { c = Sin(p) }>
        }"""
    )
    (loop,) = separate_subgraph_outputs(model).graph
    outputs = list(loop.attributes["body"].as_graph().outputs)
    assert len(set(outputs)) == len(outputs)
    assert all(value.producer() is not None for value in outputs)
