"""CheckpointState: parameters and properties, from a file and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.checkpoints import tensor_files
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, FeedError
from onward.training.api import CheckpointState, Module
from tests.training.api.made import Folder, batch


def test_parameters_have_data_gradients_and_names(partly: Folder) -> None:
    state = CheckpointState.load_checkpoint(partly.checkpoint)
    assert {name for name, _ in state.parameters} == {
        "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"
    }  # fmt: skip
    weight = state.parameters["fc2.weight"]
    assert weight.name == "fc2.weight" and weight.requires_grad is True
    assert weight.data.shape == (3, 8) and weight.grad is None
    assert repr(weight) == "Parameter(name=fc2.weight, requires_grad=True)"
    Module(partly.training, state)
    np.testing.assert_array_equal(weight.grad, np.zeros((3, 8)))
    frozen = state.parameters["fc1.weight"]
    assert frozen.requires_grad is False and frozen.grad is None
    assert "fc1.weight" in repr(state.parameters)


def test_data_is_a_copy_that_can_be_assigned(whole: Folder) -> None:
    state, module, _ = whole.open()
    old = state.parameters["fc1.weight"].data
    state.parameters["fc1.weight"].data = np.ones_like(old)
    assert not np.array_equal(old, state.parameters["fc1.weight"].data)
    changed = module.eval()(*batch())
    state.parameters["fc1.weight"] = old
    assert module(*batch()) != changed
    np.testing.assert_array_equal(state.parameters["fc1.weight"].data, old)


def test_data_of_another_type_or_shape_is_refused(whole: Folder) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    law = r"parameter 'fc2.bias' is float32 of shape \(3,\), not float64 of shape \(3,\)"
    with pytest.raises(FeedError, match=law):
        state.parameters["fc2.bias"].data = np.zeros(3)
    with pytest.raises(FeedError, match=r"not float32 of shape \(1, 3\)"):
        state.parameters["fc2.bias"] = np.zeros((1, 3), np.float32)


def test_unknown_names_are_key_errors(whole: Folder) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    with pytest.raises(KeyError, match="no parameter 'fc9'"):
        _ = state.parameters["fc9"]
    with pytest.raises(KeyError, match="no parameter 'fc9'"):
        state.parameters["fc9"] = np.zeros(1)
    with pytest.raises(KeyError, match="no property 'epoch'"):
        _ = state.properties["epoch"]


@pytest.mark.parametrize("value", [-1, 0, 1234567890, -0.5, 0.1, "hello", "", 2**40])
def test_properties_survive_a_file(whole: Folder, tmp_path: Path, value: int | float | str) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    assert len(state.properties) == 0
    state.properties["mine"] = value
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    again = CheckpointState.load_checkpoint(str(tmp_path / "saved"))
    assert "mine" in again.properties and list(again.properties) == [("mine", value)]
    assert type(again.properties["mine"]) is type(value)
    assert repr(again.properties) == f"Properties({{'mine': {value!r}}})"


def test_properties_are_numbers_or_strings(whole: Folder) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    state.properties["loss"], state.properties["done"] = np.float32(0.5), True
    assert state.properties["loss"] == 0.5 and state.properties["done"] == 1
    with pytest.raises(TypeError, match="property 'x' must be an int, a float or a str, not list"):
        state.properties["x"] = [1]  # type: ignore[assignment]


def test_state_can_be_indexed_by_name(whole: Folder) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    state["epoch"] = 3
    state["fc2.bias"] = np.ones(3, np.float32)
    assert state["epoch"] == 3 and "epoch" in state and "fc2.bias" in state and "x" not in state
    assert state["fc2.bias"].data.tolist() == [1, 1, 1]


def test_saved_state_loads_unchanged(whole: Folder, tmp_path: Path) -> None:
    state, module, optimizer = whole.open()
    module(*batch())
    optimizer.step()
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    again, other, _ = whole.open(tmp_path / "saved")
    np.testing.assert_array_equal(
        module.get_contiguous_parameters().numpy(), other.get_contiguous_parameters().numpy()
    )
    assert [name for name, _ in again.parameters] == [name for name, _ in state.parameters]


def test_nominal_state_is_saved_as_nominal(whole: Folder, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(whole.nominal)
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    again = CheckpointState.load_checkpoint(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="Please load the parameter states first"):
        _ = again.parameters["fc1.weight"]


def test_constructor_refuses_anything_but_a_state(whole: Folder) -> None:
    with pytest.raises(TypeError, match=r"must be made from a file, not from str\nCheckpointState"):
        CheckpointState("checkpoint")  # type: ignore[arg-type]


def test_files_of_other_formats_are_refused(whole: Folder, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="there is no such file\n"):
        CheckpointState.load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError):
        CheckpointState.load_checkpoint(whole.training)
    tensor_files.write(tmp_path / "other", {"w": np.zeros(3)}, {"epoch": 3})
    with pytest.raises(CheckpointError, match="is a checkpoint, but not of training artifacts"):
        CheckpointState.load_checkpoint(tmp_path / "other")
    properties = {
        "parameters": {"w": {"requires_grad": True}},
        "user": {}, "optimizer": None, "nominal": False, "model": None,
    }  # fmt: skip
    tensor_files.write(tmp_path / "part", {}, properties)
    with pytest.raises(CheckpointCorrupt, match="parameter 'w' has no data"):
        CheckpointState.load_checkpoint(tmp_path / "part")


def test_full_folder_keeps_the_old_checkpoint(whole: Folder, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    with pytest.raises(CheckpointError, match="make the folder"):
        CheckpointState.save_checkpoint(state, tmp_path / "nowhere" / "saved")
