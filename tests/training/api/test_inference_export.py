"""Models for inference: clean, and with the parameters as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.errors import OptionError
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.artifacts import LossType
from tests.training.api.made import Folder, batch, make, normalized
from tests.training.nets import convolutional


def test_exported_model_has_the_trained_parameters_and_no_loss(
    partly: Folder, tmp_path: Path
) -> None:
    _, module, optimizer = partly.open()
    x, labels = batch()
    optimizer.set_learning_rate(0.1)
    for _ in range(5):
        module(x, labels)
        optimizer.step()
        module.lazy_reset_grad()
    _, logits = module.eval()(x, labels)
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["output"])
    model = onnx.load(tmp_path / "inference.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["input"]
    assert {tensor.name for tensor in model.graph.initializer} >= {"fc1.weight", "fc2.weight"}
    assert not model.metadata_props
    session = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"))
    np.testing.assert_allclose(session.run(["output"], {"input": x})[0], logits, rtol=1e-6)


def test_running_statistics_are_exported(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", normalized(), loss=LossType.MSELoss)
    _, module, _ = folder.open()
    x = np.random.default_rng(0).normal(5, 3, size=(8, 2, 3)).astype(np.float32)
    for _ in range(40):
        module(x, np.zeros_like(x))
    module.export_model_for_inferencing(str(tmp_path / "inference.onnx"), ["output"])
    session = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"))
    (y,) = session.run(None, {"input": x})
    assert abs(float(y.mean())) < 0.2 and abs(float(y.std()) - 1) < 0.2


def test_exported_model_has_no_dropout(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", convolutional(dropout=True), loss=LossType.MSELoss)
    _, module, _ = folder.open()
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["output"])
    operators = [n.op_type for n in onnx.load(tmp_path / "inference.onnx").graph.node]
    assert operators == ["Conv", "BatchNormalization", "Relu", "Flatten", "Gemm"]


def test_unknown_outputs_are_refused(whole: Folder, tmp_path: Path) -> None:
    _, module, _ = whole.open()
    with pytest.raises(OptionError, match=r"the model has no value 'logits'\n.*output"):
        module.export_model_for_inferencing(tmp_path / "x.onnx", ["logits"])
    with pytest.raises(OptionError, match="outputs is empty: an exported model needs"):
        module.export_model_for_inferencing(tmp_path / "x.onnx", [])
    assert not (tmp_path / "x.onnx").exists()


def test_training_continues_after_an_export(whole: Folder, tmp_path: Path) -> None:
    _, module, optimizer = whole.open()
    module.export_model_for_inferencing(tmp_path / "x.onnx", ["output"])
    first = module(*batch())
    optimizer.step()
    assert module(*batch()) != first
    exported = onnx.load(tmp_path / "x.onnx")
    assert len(exported.graph.output) == 1


def test_ort_format_trains_but_cannot_be_exported(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", ort_format=True)
    state = CheckpointState.load_checkpoint(folder.checkpoint)
    paths = [folder.path / f"{name}_model.ort" for name in ("training", "eval", "optimizer")]
    module = Module(paths[0], state, paths[1])
    optimizer = Optimizer(paths[2], module)
    first = module(*batch())
    optimizer.step()
    assert module.eval()(*batch()) != first
    with pytest.raises(OptionError, match="is in onnxruntime's own format, which only it reads"):
        module.export_model_for_inferencing(tmp_path / "x.onnx", ["output"])
