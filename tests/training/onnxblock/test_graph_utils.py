"""Look-ups in a ModelProto."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onward.training.onnxblock import _graph_utils
from tests.training.nets import float_info, mlp, model_of, names


def test_generated_names_are_unique() -> None:
    made = {_graph_utils.generate_graph_name("y") for _ in range(100)}
    assert len(made) == 100
    assert all(name.startswith("onnx::y::") for name in made)


@pytest.mark.parametrize("name", ["input", "hidden", "output", "fc1.weight"])
def test_node_arg_exists_for_every_value(name: str) -> None:
    assert _graph_utils.node_arg_exists(mlp(), name)
    assert _graph_utils.get_value_info(mlp(), name).name == name


def test_node_arg_exists_for_no_other_name() -> None:
    assert not _graph_utils.node_arg_exists(mlp(), "labels")
    with pytest.raises(LookupError, match="The provided name labels is not a value of the graph"):
        _graph_utils.get_value_info(mlp(), "labels")


def test_outputs_are_registered_in_order() -> None:
    model = mlp()
    _graph_utils.register_graph_outputs(model, ("hidden", "output", "hidden"))
    assert names(model.graph.output) == ["hidden", "output"]
    _graph_utils.register_graph_outputs(model, "output")
    assert names(model.graph.output) == ["output"]
    law = "The provided name nothing is not a graph value info or a graph output"
    with pytest.raises(LookupError, match=law):
        _graph_utils.register_graph_outputs(model, ["nothing"])


def test_large_weights_become_inputs() -> None:
    weights = {"w": np.ones((100, 100), np.float32), "shape": np.array([100, 100])}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["square"]),
        helper.make_node("MatMul", ["square", "w"], ["y"]),
    ]
    model = model_of(nodes, [float_info("x", [10000])], [float_info("y", [100, 100])], weights)
    light = _graph_utils.without_weights(model)
    assert names(light.graph.input) == ["x", "w"]
    assert names(light.graph.initializer) == ["shape"]
    _graph_utils.check(model)
    square = _graph_utils.get_value_info(model, "square").type.tensor_type.shape.dim
    assert [dim.dim_value for dim in square] == [100, 100]


def test_invalid_model_is_refused() -> None:
    model = mlp()
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(onnx.checker.ValidationError, match="nowhere"):
        _graph_utils.check(model)
