"""save_checkpoint and load_checkpoint_to_model: parameters to a file and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onward.checkpoints import file_contents
from onward.checkpoints.model_match import fingerprint
from onward.errors import CheckpointError, CheckpointMismatch
from onward.training import onnxblock
from tests.training.api.peer_writer import write_peer
from tests.training.nets import arrays, mlp


class Training(onnxblock.TrainingBlock):
    def build(self, output_name: str) -> str:
        return str(onnxblock.loss.MSELoss()(output_name))


def block_of(model: onnx.ModelProto) -> Training:
    block = Training()
    for name in ("fc2.weight", "fc1.bias"):
        block.requires_grad(name)
    block.requires_grad("fc1.weight", False)
    with onnxblock.base(model):
        block("output")
    return block


def test_saved_parameters_load_into_another_model(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    onnxblock.save_checkpoint(block_of(mlp(seed=1)).parameters(), path)
    model = mlp(seed=2)
    before = arrays(model.graph.initializer)
    onnxblock.load_checkpoint_to_model(str(path), model)
    after, saved = arrays(model.graph.initializer), arrays(mlp(seed=1).graph.initializer)
    for name in ("fc2.weight", "fc1.bias", "fc1.weight"):
        assert (after[name] == saved[name]).all()
    assert (after["fc2.bias"] == before["fc2.bias"]).all()  # it was no parameter
    stored = file_contents.read(path).parameters
    assert {name: one.requires_grad for name, one in stored.items()} == {
        "fc1.bias": True,
        "fc2.weight": True,
        "fc1.weight": False,
    }


def test_a_nominal_checkpoint_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    onnxblock.save_checkpoint(block_of(mlp(1)).parameters(), path, nominal_checkpoint=True)
    model = mlp(seed=2)
    onnxblock.load_checkpoint_to_model(path, model)
    assert model == mlp(seed=2)


def test_checkpoint_of_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No checkpoint parameters provided"):
        onnxblock.save_checkpoint(None, tmp_path / "checkpoint")


def test_shapes_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    tensor = onnx.numpy_helper.from_array(np.ones(7, np.float32), "fc1.bias")
    onnxblock.save_checkpoint(([tensor], []), path)
    law = r"parameter 'fc1.bias' has shape \(5,\) in the model and \(7,\) in .*checkpoint"
    with pytest.raises(CheckpointMismatch, match=law):
        onnxblock.load_checkpoint_to_model(path, mlp())


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        onnxblock.load_checkpoint_to_model(tmp_path / "none", mlp())


def test_peer_file_is_loaded(tmp_path: Path) -> None:
    path, saved = tmp_path / "checkpoint", arrays(mlp(seed=1).graph.initializer)
    trainable = {name: saved[name] for name in ("fc1.weight", "fc1.bias")}
    write_peer(path, trainable, {"fc2.bias": saved["fc2.bias"]}, external=True)
    model = mlp(seed=2)
    before = arrays(model.graph.initializer)
    onnxblock.load_checkpoint_to_model(path, model)
    after = arrays(model.graph.initializer)
    assert all((after[name] == saved[name]).all() for name in (*trainable, "fc2.bias"))
    assert (after["fc2.weight"] == before["fc2.weight"]).all()


def test_checkpoint_has_the_models_fingerprint(tmp_path: Path) -> None:
    for nominal in (False, True):
        path = tmp_path / f"checkpoint_{nominal}"
        onnxblock.save_checkpoint(block_of(mlp()).parameters(), path, nominal)
        known = fingerprint({"fc2.weight": (3, 5), "fc1.bias": (5,)})  # what is trained
        assert file_contents.read(path).model == known
