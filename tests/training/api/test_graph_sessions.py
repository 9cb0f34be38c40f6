"""Opening graphs: errors with advice for those that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from onward.errors import InvalidModel
from onward.providers.options import SessionOptions
from onward.training.api import CheckpointState, Module
from onward.training.api.graph_sessions import open_graph
from tests.training.api.made import Folder


def test_artifacts_of_the_peer_are_refused_with_advice(whole: Folder, tmp_path: Path) -> None:
    model = onnx.load(whole.training)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for node in model.graph.node:
        if node.op_type == "If":  # the peer sums gradients with a custom operator
            node.op_type, node.domain = "InPlaceAccumulatorV2", "com.microsoft"
            del node.attribute[:]
    onnx.save(model, tmp_path / "training_model.onnx")
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    law = r"InPlaceAccumulatorV2.*\nonnxruntime.training made it.*\n?.*checkpoints can stay"
    with pytest.raises(InvalidModel, match=law):
        Module(tmp_path / "training_model.onnx", state)


def test_invalid_model_is_not_reported_as_the_peers() -> None:
    with pytest.raises(InvalidModel) as caught:
        open_graph(b"nothing", SessionOptions(log_severity_level=4))
    assert "onnxruntime.training" not in str(caught.value)
