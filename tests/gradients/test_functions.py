"""Model-local functions are differentiated as what they are made of."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onward.gradients.model import gradient
from onward.testing import check_gradient


def model(nodes: list[onnx.NodeProto]) -> ir.Model:
    """y = nodes of x (2, 3) and w (3,); there are two functions, Wave and Twice, which calls it."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    gain = helper.make_node("Constant", [], ["gain"])
    gain.attribute.append(onnx.AttributeProto(name="value_float", ref_attr_name="gain", type=1))
    wave = helper.make_function(
        "mine",
        "Wave",
        ["a", "k"],
        ["b"],
        [
            gain,
            helper.make_node("CastLike", ["gain", "a"], ["g"]),
            helper.make_node("Mul", ["a", "k"], ["ak"]),
            helper.make_node("Sin", ["ak"], ["s"]),
            helper.make_node("Mul", ["s", "g"], ["b"]),
        ],
        opsets,
        ["gain"],
    )
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a", "k"],
        ["b"],
        [
            helper.make_node("Wave", ["a", "k"], ["once"], domain="mine", gain=2.0),
            helper.make_node("Wave", ["once", "k"], ["b"], domain="mine", gain=0.5),
        ],
        opsets,
    )
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", 3]),
            helper.make_tensor_value_info("w", TensorProto.DOUBLE, [3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["batch", 3])],
    )
    proto = helper.make_model(graph, opset_imports=opsets, functions=[wave, twice], ir_version=10)
    return ir.from_proto(proto)


@pytest.mark.parametrize("name", ["Wave", "Twice"])
def test_a_function_has_the_gradient_of_its_body(name: str) -> None:
    attributes = {"gain": 1.5} if name == "Wave" else {}
    call = helper.make_node(name, ["x", "w"], ["y"], domain="mine", **attributes)
    feeds = {"x": np.linspace(-1, 1, 6).reshape(2, 3), "w": np.array([0.5, -1.0, 2.0])}
    check_gradient(model([call]), feeds)


def test_a_function_that_is_called_twice_has_both_gradients() -> None:
    first = helper.make_node("Wave", ["x", "w"], ["z"], domain="mine", gain=1.0)
    second = helper.make_node("Twice", ["z", "w"], ["y"], domain="mine")
    feeds = {"x": np.linspace(-1, 1, 6).reshape(2, 3), "w": np.array([0.5, -1.0, 2.0])}
    check_gradient(model([first, second]), feeds)


def test_the_gradient_of_a_function_needs_no_function() -> None:
    call = helper.make_node("Twice", ["x", "w"], ["y"], domain="mine")
    extended = gradient(model([call]), {"y": "dy"}, ["x", "w"])
    assert not extended.functions
    assert {node.domain for node in extended.graph} == {""}
