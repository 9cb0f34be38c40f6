"""Real models with their weights in a second file give the answers that they give without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from tests.layouts import Layout, save_in_layout
from tests.real.catalog import MODELS, RealModel

pytestmark = [pytest.mark.real_model, pytest.mark.filterwarnings("ignore")]
PROVIDERS = [None, "CPUExecutionProvider", "TorchExecutionProvider", "OpenVINOExecutionProvider"]
REFERENCE = "ReferenceExecutionProvider"
QUICK = {"mnist-8", "kinematics", "kinematics-int8", "silero-vad", "minilm"}
CASES = [(model, p) for model in MODELS for p in PROVIDERS]
CASES += [(model, REFERENCE) for model in MODELS if model.name in QUICK]


# Tolerance: onnxruntime may fuse a planned model (which models with external weights are) otherwise
# than it fuses the file's own bytes, and then adds up in another order.


def answers(model: RealModel, path: Path, provider: str | None) -> list[Any]:
    session = onward.InferenceSession(path, providers=None if provider is None else [provider])
    return session.run(None, model.feeds(session))


@pytest.mark.parametrize(
    ("model", "provider"), CASES, ids=[f"{m.name}-{p or 'default'}" for m, p in CASES]
)
def test_external_weights_at_every_threshold_give_the_same_answers(
    tmp_path: Path, model: RealModel, provider: str | None
) -> None:
    wanted = answers(model, model.path(), provider)
    proto = onnx.load(model.path())
    for threshold in (0, 256, 1024):
        layout = Layout(threshold, attributes=False)  # what onnx.save writes by default
        path = save_in_layout(proto, tmp_path / str(threshold), layout)
        for got, one in zip(answers(model, path, provider), wanted, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_saved_by_onnx_with_external_data_opens(tmp_path: Path, model: RealModel) -> None:
    wanted = answers(model, model.path(), None)
    for threshold in (0, 256, 1024):
        path = tmp_path / f"{threshold}.onnx"
        onnx.save(
            onnx.load(model.path()), path, save_as_external_data=True, size_threshold=threshold,
            location=f"{threshold}.data", convert_attribute=threshold == 256,
        )  # fmt: skip
        for got, one in zip(answers(model, path, None), wanted, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-6)
