"""Roles of a graph's inputs and outputs."""

from __future__ import annotations

import dataclasses

import onnx
import pytest

from onward.errors import InvalidModel
from onward.programs.label_ranges import LabelRange
from onward.providers.ort.bound_session import Argument, BoundSession
from onward.training.api.graph_roles import find_roles, type_and_shape
from tests.training.api.made import NAMES, Folder


def test_roles_of_a_training_graph(partly: Folder) -> None:
    found = find_roles(BoundSession(partly.training), NAMES)
    assert found.inputs == ("input", "labels") and found.outputs[1] == "output"
    assert found.output_names == found.outputs and found.loss_dtype == "float32"
    assert list(found.parameters) == NAMES and found.parameters["fc1.bias"] == ("float32", (8,))
    assert list(found.gradients) == ["fc2.weight", "fc2.bias"]
    assert found.gradients["fc2.bias"] == "fc2.bias_grad.accumulation.out"
    assert found.input_gradients == found.state == {}
    assert found.labels == (LabelRange(name="labels", classes=3, ignored=None),)


def test_roles_without_metadata_use_the_checkpoint(partly: Folder) -> None:
    model = onnx.load(partly.training)
    del model.metadata_props[:]
    found = find_roles(BoundSession(model.SerializeToString()), NAMES)
    assert found == dataclasses.replace(find_roles(BoundSession(partly.training), NAMES), labels=())


def test_inputs_keep_the_order_of_the_graph(partly: Folder) -> None:
    model = onnx.load(partly.training)
    first, second, *others = model.graph.input
    moved = onnx.GraphProto(input=[second, *others, first])
    del model.graph.input[:]
    model.graph.input.extend(moved.input)
    found = find_roles(BoundSession(model.SerializeToString()), NAMES)
    assert (first.name, second.name) == ("input", "labels")
    assert found.inputs == ("labels", "input")


def test_unmatched_gradient_buffers_are_refused(partly: Folder) -> None:
    model = onnx.load(partly.training)
    del model.graph.output[-1]
    with pytest.raises(
        InvalidModel, match="its gradient outputs do not match its gradient buffers"
    ):
        find_roles(BoundSession(model.SerializeToString()), NAMES)
    model = onnx.load(partly.training)
    for prop in model.metadata_props:
        prop.value = "input"
    with pytest.raises(InvalidModel, match=r"the model's onward.inputs is not a list of names"):
        find_roles(BoundSession(model.SerializeToString()), NAMES)


def test_parameter_of_unknown_shape_is_refused() -> None:
    assert type_and_shape(Argument("w", "tensor(float)", (2, 3))) == ("float32", (2, 3))
    with pytest.raises(InvalidModel, match=r"parameter 'w' is tensor\(float\) of shape \(n, 3\)"):
        type_and_shape(Argument("w", "tensor(float)", ("n", 3)))
