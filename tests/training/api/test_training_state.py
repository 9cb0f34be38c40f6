"""TrainingState: the order, slots and checks of parameters."""

from __future__ import annotations

import numpy as np
import pytest

from onward.checkpoints.file_contents import Contents, StoredOptimizer, StoredParameter
from onward.checkpoints.model_match import fingerprint
from onward.errors import CheckpointMismatch
from onward.training.api.training_state import TrainingState


def made(optimizer: StoredOptimizer | None = None) -> TrainingState:
    values = {
        "frozen": StoredParameter(False, np.ones(2, np.float32)),
        "w": StoredParameter(True, np.full((2, 2), 2, np.float32)),
        "ids": StoredParameter(False, np.arange(3)),
        "b": StoredParameter(True, np.full(1, 3, np.float32)),
    }
    return TrainingState(Contents(values, optimizer=optimizer))


def test_trainable_parameters_come_first_in_file_order() -> None:
    state = made()
    assert state.trainable == ["w", "b"]
    assert state.buffer_names(trainable_only=False) == ["w", "b", "frozen"]
    assert state.buffer_names(trainable_only=True) == ["w", "b"]
    assert state.read("ids").tolist() == [0, 1, 2]


def test_slots_start_at_their_initial_number() -> None:
    state = made()
    slots = {"sum": {"w": ("float32", (2, 1), 0.5), "b": ("float32", (0,), 0.0)}}
    standing = state.start_optimizer(slots, 0.01)
    assert standing.step == 0 and standing.learning_rate == 0.01
    assert standing.slots["sum"]["w"].tolist() == [[0.5], [0.5]]
    assert standing.slots["sum"]["b"].size == 0


def test_saved_slots_of_other_shapes_are_refused() -> None:
    slots = {"sum": dict.fromkeys(("w", "b"), ("float32", (1,), 0.0))}
    saved = {"sum": {"w": np.ones(1, np.float32), "b": np.ones(4, np.float32)}}
    with pytest.raises(CheckpointMismatch, match=r"'sum' of 'b' is float32 of shape \(1,\) in the"):
        made(StoredOptimizer(1, 0.1, 0.1, saved)).start_optimizer(slots, 0.01)
    short = {"sum": {"w": np.ones(1, np.float32)}}
    with pytest.raises(
        CheckpointMismatch, match="the optimizer needs 'sum' of 'b', in the checkpoint it is"
    ):
        made(StoredOptimizer(1, 0.1, 0.1, short)).start_optimizer(slots, 0.01)


def test_parameters_of_another_model_are_refused() -> None:
    state = made()
    kinds = {name: (array.dtype.name, array.shape) for name, array in state.tensors.items()}
    state.check_parameters(kinds, ["w", "b"])
    with pytest.raises(
        CheckpointMismatch, match=r"'w' is float32 of shape \(4,\) in the model, in"
    ):
        state.check_parameters({**kinds, "w": ("float32", (4,))}, ["w", "b"])
    with pytest.raises(CheckpointMismatch, match="'b': the checkpoint has it, the model has not"):
        state.check_parameters({"w": kinds["w"]}, ["w"])
    state.check_parameters({"w": kinds["w"]}, ["w"], whole=False)


def test_nominal_checkpoint_is_matched_by_fingerprint() -> None:
    stored = {"w": StoredParameter(True, None), "frozen": StoredParameter(False, None)}
    kinds = {"w": ("float32", (2, 2)), "frozen": ("float32", (2,))}
    model = fingerprint({"w": (2, 2)})
    TrainingState(Contents(stored, model=model)).check_parameters(kinds, ["w"])
    state = TrainingState(Contents(stored, model=model))
    with pytest.raises(CheckpointMismatch, match="have its names, but other shapes\nload the"):
        state.check_parameters({**kinds, "w": ("float32", (4,))}, ["w"])
    assert not state.tensors  # it can still go to the model that it is of
    state.check_parameters(kinds, ["w"])
    assert state.contents(include_optimizer=False).model == model
