"""Costs inside If, Loop and Scan: undeclared sizes, computed iteration counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.graph.costs.node_costs import Costs, model_costs
from onward.graph.files import load

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
PRODUCT = 2 * 64 * 64  # one row of 64 times 64 x 64


def value(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    """A declared value; without a shape, its name alone."""
    if shape is None and kind == FLOAT:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, kind, shape)


def costs(nodes: list[Any], inputs: list[Any], output: str, *more: Any, **sizes: int) -> Costs:
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(nodes, "g", inputs, [value(output)], [w, *more])
    imports = [helper.make_opsetid("", 18)]
    return model_costs(load(helper.make_model(graph, opset_imports=imports, ir_version=9)), sizes)


def loop_body(shape: Any = None, extra: bool = False) -> Any:
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["next"]),
        helper.make_node("Identity", ["c"], ["again"]),
    ]
    outputs = [value("again", BOOL, []), value("next", shape=shape)]
    if extra:
        nodes.append(helper.make_node("Identity", ["next"], ["each"]))
        outputs.append(value("each"))
    inputs = [value("i", INT64, []), value("c", BOOL, []), value("h", shape=shape)]
    return helper.make_graph(nodes, "body", inputs, outputs)


X = value("x", FLOAT, ["n", 64])
FIVE = numpy_helper.from_array(np.int64(5), "m")


@pytest.mark.parametrize("shape", [None, ["k", 64]], ids=["untyped", "named"])
def test_carried_values_keep_their_initial_sizes(shape: Any) -> None:
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=loop_body(shape))
    found = costs([node], [X], "y", FIVE, n=3)
    assert (found.flops, found.total.basis) == (5 * 3 * PRODUCT, "rule")


def test_computed_iteration_counts_are_used() -> None:
    zero = numpy_helper.from_array(np.int64(0), "zero")
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["m"]),
        helper.make_node("Loop", ["m", "", "x"], ["y"], body=loop_body()),
    ]
    assert costs(nodes, [X], "y", zero, n=7).flops == 7 * 7 * PRODUCT


def test_an_unknown_iteration_count_is_one() -> None:
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=loop_body())
    found = costs([node], [X, value("m", INT64, [])], "y")
    assert (found.flops, found.count("once")) == (PRODUCT, 1)


def test_nodes_after_a_loop_are_counted() -> None:
    nodes = [
        helper.make_node("Loop", ["m", "", "x"], ["y", "all"], body=loop_body(extra=True)),
        helper.make_node("Relu", ["all"], ["z"]),
    ]
    found = costs(nodes, [X], "z", FIVE, n=3)
    assert found.operators["Relu"].flops == 5 * 3 * 64


def test_a_loop_that_grows_what_it_carries_is_an_estimate() -> None:
    nodes = [
        helper.make_node("Concat", ["h", "h"], ["next"], axis=0),
        helper.make_node("Relu", ["next"], ["unused"]),
        helper.make_node("Identity", ["c"], ["again"]),
    ]
    inputs = [value("i", INT64, []), value("c", BOOL, []), value("h")]
    body = helper.make_graph(nodes, "body", inputs, [value("again", BOOL, []), value("next")])
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    assert costs([node], [X], "y", FIVE).total.basis == "estimate"


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_scan_runs_as_often_as_it_is_long(axis: int) -> None:
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["a"]),
        helper.make_node("Add", ["a", "each"], ["next"]),
        helper.make_node("Identity", ["next"], ["out"]),
    ]
    body = helper.make_graph(
        nodes, "body", [value("h"), value("each")], [value("next"), value("out")]
    )
    scan = helper.make_node(
        "Scan", ["h0", "s"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_axes=[axis]
    )
    shape: list[Any] = ["n", 64]
    shape.insert(axis % 3, "t")
    after = helper.make_node("Relu", ["y"], ["z"])
    inputs = [value("h0", FLOAT, ["n", 64]), value("s", FLOAT, shape)]
    found = costs([scan, after], inputs, "z", n=2, t=10)
    assert found.flops == 10 * 2 * (PRODUCT + 64) + 10 * 2 * 64


def test_branches_inside_branches_count_their_dearest() -> None:
    inner = [
        helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["p"])], "p", [], [value("p")]),
        helper.make_graph([helper.make_node("Relu", ["x"], ["q"])], "q", [], [value("q")]),
    ]
    choice = helper.make_node("If", ["c"], ["r"], then_branch=inner[0], else_branch=inner[1])
    outer = [
        helper.make_graph([choice], "r", [], [value("r")]),
        helper.make_graph([helper.make_node("Neg", ["x"], ["s"])], "s", [], [value("s")]),
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=outer[0], else_branch=outer[1])
    after = helper.make_node("Relu", ["y"], ["z"])
    found = costs([node, after], [X, value("c", BOOL, [])], "z")
    assert found.flops == PRODUCT + 64 and found.count("unknown") == 0
