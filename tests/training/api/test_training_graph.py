"""Training models: damaged or changed steps in their metadata."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from onward.errors import InvalidModel
from onward.training.api import CheckpointState, Module
from onward.training.api.graph_sessions import TRAIN
from onward.training.api.training_graph import STEP, SummingGraph
from tests.training.api.made import Folder, batch

EMPTY = "eJwDAAAAAAE="  # no bytes at all, compressed


def changed(folder: Folder, target: Path, **fields: object) -> Module:
    """A module whose training model has other things packed; its graph is the same."""
    model = onnx.load(folder.training)
    [prop] = (prop for prop in model.metadata_props if prop.key == STEP)
    prop.value = json.dumps({**json.loads(prop.value), **fields})
    onnx.save(model, target)
    return Module(target, CheckpointState.load_checkpoint(folder.checkpoint))


def test_a_damaged_step_is_refused(whole: Folder, tmp_path: Path) -> None:
    plain: dict[str, object] = {"faster": {}}  # the graph for any processor is opened
    damaged = ({"train": "no base64!", **plain}, {"train": 3, **plain}, {"outputs": None})
    for fields in (*damaged, {"faster": {"x": {}}}, {"faster": 3}):
        with pytest.raises(InvalidModel, match=r"the model's onward.step cannot be read: .*\nmake"):
            changed(whole, tmp_path / "x.onnx", **fields)


@pytest.mark.parametrize("fields", [{"version": 2}, {"graph": 0}], ids=["version", "checksum"])
def test_step_of_a_changed_model_is_not_run(whole: Folder, tmp_path: Path, fields: dict) -> None:
    module = changed(whole, tmp_path / "x.onnx", **fields)
    assert isinstance(module._opener.open(TRAIN), SummingGraph)
    assert module(*batch()) == pytest.approx(whole.open()[1](*batch()), rel=1e-6)


def test_unsupported_step_falls_back_to_the_models_own_graph(whole: Folder, tmp_path: Path) -> None:
    module = changed(whole, tmp_path / "x.onnx", train=EMPTY, faster={})
    assert isinstance(module._opener.open(TRAIN), SummingGraph)


def test_a_step_for_this_processor_that_does_not_open_falls_back(
    whole: Folder, tmp_path: Path
) -> None:
    faster = {"any": {"probe": EMPTY, "train": EMPTY}}  # what cannot be probed is any processor
    module = changed(whole, tmp_path / "x.onnx", faster=faster)
    assert isinstance(module._opener.open(TRAIN), SummingGraph)
