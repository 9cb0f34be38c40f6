"""Generated artifacts in plain onnxruntime: it loads them without a warning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.nets import convolutional, float_info, mlp, model_of


@pytest.mark.parametrize("net", ["mlp", "convolutional", "recurrent"])
def test_stock_onnxruntime_loads_artifacts_without_warnings(
    net: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No initializer that is not read, no shape that its own inference calls wrong."""
    model = {"mlp": mlp, "convolutional": convolutional, "recurrent": wrong_length}[net]()
    floats = [each.name for each in model.graph.initializer if "running" not in each.name]
    generate_artifacts(
        model,
        floats,
        loss=LossType.MSELoss,
        optimizer=OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    for path in sorted(tmp_path.glob("*.onnx")):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert "onnxruntime" not in capfd.readouterr().err


def wrong_length() -> onnx.ModelProto:
    """A GRU whose output has the length of the exporter's example."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(1, 12, 3)).astype(np.float32),
        "r": rng.normal(size=(1, 12, 4)).astype(np.float32),
    }
    node = onnx.helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=4)
    inputs = [float_info("x", ["time", "batch", 3])]
    return model_of([node], inputs, [float_info("y", [5, 1, 2, 4])], weights)
