"""Roles: who is who among a graph's inputs and outputs."""

from __future__ import annotations

import dataclasses

import onnx
import pytest

from onward.errors import InvalidModel
from onward.programs.label_ranges import LabelRange
from onward.providers.ort.bound_session import Argument, BoundSession
from onward.training.api.graph_roles import kind, roles_of
from tests.training.api.made import NAMES, Folder


def test_a_training_graph_is_told_apart(partly: Folder) -> None:
    found = roles_of(BoundSession(partly.training), NAMES)
    assert found.inputs == ("input", "labels") and found.outputs[1] == "output"
    assert found.output_names == found.outputs and found.loss_dtype == "float32"
    assert list(found.parameters) == NAMES and found.parameters["fc1.bias"] == ("float32", (8,))
    assert list(found.gradients) == ["fc2.weight", "fc2.bias"]
    assert found.gradients["fc2.bias"] == "fc2.bias_grad.accumulation.out"
    assert found.input_gradients == found.state == {}
    assert found.labels == (LabelRange(name="labels", classes=3, ignored=None),)


def test_without_metadata_the_checkpoint_tells(partly: Folder) -> None:
    model = onnx.load(partly.training)
    del model.metadata_props[:]
    found = roles_of(BoundSession(model.SerializeToString()), NAMES)
    assert found == dataclasses.replace(roles_of(BoundSession(partly.training), NAMES), labels=())


def test_the_user_feeds_in_the_order_of_the_graph(partly: Folder) -> None:
    model = onnx.load(partly.training)
    first, second, *others = model.graph.input
    moved = onnx.GraphProto(input=[second, *others, first])
    del model.graph.input[:]
    model.graph.input.extend(moved.input)
    found = roles_of(BoundSession(model.SerializeToString()), NAMES)
    assert (first.name, second.name) == ("input", "labels")
    assert found.inputs == ("labels", "input")


def test_what_is_no_training_model_is_refused(partly: Folder) -> None:
    model = onnx.load(partly.training)
    del model.graph.output[-1]
    with pytest.raises(InvalidModel, match="it gives other gradients back than it takes"):
        roles_of(BoundSession(model.SerializeToString()), NAMES)
    model = onnx.load(partly.training)
    for prop in model.metadata_props:
        prop.value = "input"
    with pytest.raises(InvalidModel, match=r"the model's onward.inputs is not a list of names"):
        roles_of(BoundSession(model.SerializeToString()), NAMES)


def test_a_parameter_has_a_known_shape() -> None:
    assert kind(Argument("w", "tensor(float)", (2, 3))) == ("float32", (2, 3))
    with pytest.raises(InvalidModel, match=r"parameter 'w' is tensor\(float\) of shape \(n, 3\)"):
        kind(Argument("w", "tensor(float)", ("n", 3)))
